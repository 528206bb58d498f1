"""FairScale's FSDP on a ResNet and CIFAR-10, in one short command.

    python fsdp/fairscale_resnet.py --resnet 18 --fp16 --gpus 2

It becomes fsdp/fairscale_fsdp.py under torchrun, the same line that a study starts; any other flag is passed on to it
(`--batch-per-worker 64 --zero-stage 2 --steps 20`). `--fp16` is precision of compute, and of gradients, which
FairScale reduces as they were computed; in a Horovod study the word means the second only (F7).
"""

from scaling_study.launch import short_command


def main() -> None:
    parser = short_command.parser(__doc__.splitlines()[0])
    parser.add_argument("--resnet", type=int, choices=(18, 50), default=18, help="layers (default: 18)")
    asked, further = parser.parse_known_args()
    short_command.become(f"resnet{asked.resnet}", asked.fp16, asked.gpus, further)


if __name__ == "__main__":
    main()
