"""Published results of distributed training, as reference data beside what was measured here.

    throughput.csv   of five public studies, 130 rows of tables: samples a second, precision of compute and allreduce
    outcomes.csv     of the same five, 47 other results: seconds of epochs, speed-ups, accuracies
    references.csv   what good code does on GPUs: images and tokens a second, minutes to an accuracy, a source each
    data_sheets.csv  dense peaks of GPUs by precision, a source each (views/roofline.py)

Source of each row of the first two: the public repository that its column `study` names (distributed_dl,
optimizing_iformer, cifar10deepspeed, lightning_hydra_timm, w251_hw9). Only figures are carried over, none of their code
or sentences. Their machines: two T4 on one host; four RTX 8000; three RTX 3090; four T4; two hosts.

    ratios.py       what the figures say as ratios (speed-ups, gains of 16 bits, effects of the batch), with the flaws
                    of each (F1 to F28, docs/internals/flaws.md), beside the same ratios of a study
    outcomes.py     what trainings came to, beside those of a study of the same name; trainings.csv and
                    training_flaws.csv say which configuration here each would be, and the flaws that it earned
    references.py   speeds beside those of a study, of one model on one class of device; rows of a user's own

Of the five studies never a speed: theirs and ours were measured on unlike hardware, and a ratio of two rates on one
machine is the most that can be carried from one to another. Accuracies and losses can be, of the same training.
"""
