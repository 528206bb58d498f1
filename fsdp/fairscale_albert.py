"""FairScale's FSDP on ALBERT and CoLA, in one short command.

    python fsdp/fairscale_albert.py --fp16 --gpus 2

It becomes fsdp/fairscale_fsdp.py under torchrun, the same line that a study starts; any other flag is passed on to it
(`--batch-per-worker 8 --zero-stage 2 --steps 20`). `--fp16` is precision of compute, and of gradients, which
FairScale reduces as they were computed; in a Horovod study the word means the second only (F7).
"""

from scaling_study.launch import short_command


def main() -> None:
    parser = short_command.parser(__doc__.splitlines()[0])
    asked, further = parser.parse_known_args()
    short_command.become("albert_base_v2", asked.fp16, asked.gpus, further)


if __name__ == "__main__":
    main()
