"""Published results of five public studies of distributed training, as reference data beside what was measured here.

    throughput.csv   130 rows of tables: samples per second, with precision of compute and of the allreduce apart
    outcomes.csv     47 other results: seconds of epochs, speed-ups, accuracies

Source of each row: the public repository that its column `study` names (distributed_dl, optimizing_iformer,
cifar10deepspeed, lightning_hydra_timm, w251_hw9). Only figures are carried over, none of their code or sentences. Their
machines: two T4 on one host; four RTX 8000; three RTX 3090; four T4; two hosts.

    ratios.py     what the figures say as ratios (speed-ups, gains of 16 bits, effects of the batch), with the flaws of
                  each (F1 to F28, docs/flaws.md), beside the same ratios of a study
    outcomes.py   what trainings came to, beside those of a study of the same name; trainings.csv and
                  training_flaws.csv say which configuration here each would be, and the flaws that it earned

Never a speed: theirs and ours were measured on unlike hardware, and a ratio of two rates on one machine is the most
that can be carried from one to another. Accuracies and losses can be, of the same training.
"""
