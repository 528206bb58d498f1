"""Public training scripts: how each is started here, what its lines say, and why some cannot be started.

In a command, {python} is an interpreter, {port} a free port, {data} the folder of data sets (DATA_ROOT) and {new} an
empty folder. A script is started as it is, in its own folder of its repository. Its data are made beside it: real
ones where DATA_ROOT has them (CIFAR-10, WikiText-2), else files of the same form (the digits of scikit-learn as MNIST).
"""

from __future__ import annotations

import csv
import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import numpy as np

from scaling_study.settings import data_root

Losses = Sequence[float]


@dataclass(frozen=True)
class Script:
    """One script of a repository of github.com, and what it is known to do by its own arguments and lines."""

    repository: str
    path: str
    command: str = ""
    cannot: str = ""  # why it does not run here
    start: str | None = None  # folder of the repository; None: the script's
    processes: int = 1  # that train
    world: int | None = None  # that average with each other; None: all
    samples: float | None = 64.0  # of one process and step; None: what the script shows does not say
    steps: int | None = 16  # after which the observer ends it; None: it runs to its end
    makes: int | None = None  # steps of a run to its end; None: it says so itself
    # A regular expression of a line with `loss`, and where it says so `step`, `rows` (samples before it), `rank`,
    # `pid`, and `backwards` made so far. Lines that say no step are counted.
    prints: str = ""
    first: int = 0  # `step` of the first step that the observer sees
    means: Callable[[Losses, int], float] = lambda losses, step: losses[step]  # what a line shows of those seen
    seeded: bool = True  # two runs print the same
    needs: tuple[tuple[str, str], ...] = ()  # (what of DATA, where below the folder in which it starts)
    note: str = ""

    @property
    def folder(self) -> str:
        """Below the checkout, in which it starts."""
        return str(Path(self.path).parent) if self.start is None else self.start


# --- data, as the scripts look for them ---


def cifar(folder: Path) -> None:
    """CIFAR-10 as it is published."""
    link(folder / "cifar-10-batches-py", data_root() / "cifar-10-batches-py")


def images(folder: Path) -> None:
    """A tree of images with train/ and val/."""
    link(folder, data_root() / "imagenet-mini")


def link(place: Path, target: Path) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    if not place.exists():
        place.symlink_to(target.resolve(), target_is_directory=True)


def digits(folder: Path) -> None:
    """Handwritten digits, 8 x 8 and enlarged to 28 x 28, as the four files of MNIST: 1,792 to train, 512 to test."""
    from sklearn.datasets import load_digits

    found = load_digits()
    enlarged = np.pad(np.kron(found.images, np.ones((1, 3, 3))), ((0, 0), (2, 2), (2, 2)))
    pixels = (enlarged * (255 / 16)).astype(np.uint8)
    raw = folder / "MNIST" / "raw"
    raw.mkdir(parents=True, exist_ok=True)
    for part, count in (("train", 1792), ("t10k", 512)):
        header = np.array([0x803, count, 28, 28], ">i4").tobytes()
        (raw / f"{part}-images-idx3-ubyte").write_bytes(header + pixels[:count].tobytes())
        header = np.array([0x801, count], ">i4").tobytes()
        (raw / f"{part}-labels-idx1-ubyte").write_bytes(header + found.target[:count].astype(np.uint8).tobytes())


def words(lines: int, part: str = "train") -> str:
    with (data_root() / "wikitext-2" / f"{part}.txt").open(encoding="utf-8") as stream:
        return "".join(line for line, _ in zip(stream, range(lines), strict=False))


def text(folder: Path) -> None:
    """The first lines of WikiText-2."""
    folder.mkdir(parents=True, exist_ok=True)
    for part in ("train", "valid", "test"):
        (folder / f"{part}.txt").write_text(words(3000, part), encoding="utf-8")


def characters(folder: Path) -> None:
    """The same as nanoGPT's prepare.py leaves a text: numbers of two bytes each, and how many kinds there are."""
    folder.mkdir(parents=True, exist_ok=True)
    for part, name in (("train", "train"), ("valid", "val")):
        np.frombuffer(words(1500, part).encode(), np.uint8).astype(np.uint16).tofile(folder / f"{name}.bin")
    (folder / "meta.pkl").write_bytes(pickle.dumps({"vocab_size": 256}))


def small_bert(folder: Path) -> None:
    """A tiny BERT by the name of the published one, with weights by chance."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    known = special + sorted({*words(1500).split()} - {*special})
    ids = {word: number for number, word in enumerate(known)}
    tokenizer = Tokenizer(models.WordLevel(ids, "[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", ids["[SEP]"]), ("[CLS]", ids["[CLS]"]))
    marks = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=64, **marks)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    bert = BertForSequenceClassification(BertConfig(vocab_size=len(known), max_position_embeddings=64, **sizes))
    bert.save_pretrained(folder / "bert-base-cased")
    fast.save_pretrained(folder / "bert-base-cased")


# Libraries that no torch of today loads, or that fetch what they compute with: as much of each as a script asks for.
TORCHTEXT = {
    "torchtext/__init__.py": "",
    "torchtext/data/__init__.py": "",
    "torchtext/data/utils.py": "def get_tokenizer(name):\n    return lambda line: line.lower().split()\n",
    "torchtext/datasets.py": """from pathlib import Path
HERE = Path(__file__).parent
def WikiText2(split=("train", "valid", "test")):
    if isinstance(split, str):
        return iter((HERE / f"{split}.txt").read_text().splitlines())
    return [WikiText2(each) for each in split]
""",
    "torchtext/vocab.py": """class build_vocab_from_iterator(dict):
    def __init__(self, lines, specials):
        words = dict.fromkeys(specials)
        for line in lines:
            words.update(dict.fromkeys(line))
        super().__init__({word: number for number, word in enumerate(words)})
    def set_default_index(self, index):
        self.default = index
    def __call__(self, words):
        return [self.get(word, self.default) for word in words]
""",
}
METRIC = """import datasets
import evaluate
class Glue(evaluate.Metric):
    def _info(self):
        whole = datasets.Value("int64")
        features = datasets.Features({"predictions": whole, "references": whole})
        return evaluate.MetricInfo(description="", citation="", features=features)
    def _compute(self, predictions, references):
        return {"accuracy": sum(a == b for a, b in zip(predictions, references)) / len(references)}
"""


def torchtext(folder: Path) -> None:
    """Stands in for torchtext, whose last release no current torch loads: WikiText-2, tokeniser and vocabulary."""
    for name, source in TORCHTEXT.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(source, encoding="utf-8")
    text(folder / "torchtext")


def sentences(folder: Path) -> None:
    """Pairs of lines of WikiText-2, where accelerate's examples have six of their own for tests."""
    lines = [line.strip() for line in words(400).splitlines() if len(line.split()) > 5]
    place = folder / "tests" / "test_samples" / "MRPC"
    place.mkdir(parents=True, exist_ok=True)
    for part, count in (("train", 80), ("dev", 16)):
        with (place / f"{part}.csv").open("w", encoding="utf-8", newline="") as stream:
            pairs = [(*lines[at : at + 2], ("equivalent", "not_equivalent")[at % 2]) for at in range(count)]
            csv.writer(stream).writerows([("sentence1", "sentence2", "label"), *pairs])


def metric(folder: Path) -> None:
    """Stands in for a metric that `evaluate` would fetch."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "glue.py").write_text(METRIC, encoding="utf-8")


DATA: Mapping[str, Callable[[Path], None]] = {
    made.__name__: made for made in (cifar, images, digits, text, characters, small_bert, torchtext, sentences, metric)
}

# --- what lines mean ---

EPOCH_LINE = r"Train Epoch: 1 \[(?P<rows>\d+)/.*?Loss: (?P<loss>[-\d.]+)"  # two processes may share a line
OF_RANK = r"\[(?P<rank>\d)\]<stdout>:"
HOROVOD = "horovodrun -np 2 --gloo {python}"
TORCHRUN = "torchrun --master-port {port} --nproc-per-node 2"
NEEDS_GPUS = "it ends at once, with exit code 0, where there are fewer than 2 GPUs"
CUDA_CALLS = "it calls CUDA whether or not there is a GPU"
OLD_ADAMW = "imports AdamW from transformers, which has it no more"
LIGHTNING_CUDA = "it asks Lightning for CUDA"


def mean_so_far(losses: Losses, step: int) -> float:
    return fmean(losses[: step + 1])


def mean_of_last(count: int) -> Callable[[Losses, int], float]:
    return lambda losses, step: fmean(losses[max(0, step + 1 - count) : step + 1])


def times(factor: float) -> Callable[[Losses, int], float]:
    return lambda losses, step: factor * losses[step]


def last(losses: Losses, step: int) -> float:
    return losses[-1]


EXAMPLES, IFORMER, STUDY = "pytorch/examples", "TianjianNi/Optimizing-iFormer", "alex-preau/distributed_dl"
LIGHTNING_TIMM, ACCELERATE = "gokul-pv/lightning-hydra-timm", "huggingface/accelerate"
PAIRS = (("small_bert", "."), ("metric", "glue"), ("sentences", "."))
SCRIPTS = (
    # --- the five studies' own ---
    Script(
        STUDY, "horovod/pytorch_resnet_cifar10.py",
        f"{HOROVOD} pytorch_resnet_cifar10.py --batch-size 16 --log-interval 1 --no-cuda",
        processes=2, samples=16, steps=12, prints=OF_RANK + EPOCH_LINE,
        needs=(("cifar", "data-0"), ("cifar", "data-1")),
    ),
    Script(STUDY, "horovod/pytorch_albert.py", cannot=f"{CUDA_CALLS}; {OLD_ADAMW}"),
    Script(STUDY, "fairseq/fairseq_test.py", cannot=f"{LIGHTNING_CUDA}; its weights are fetched"),
    Script(STUDY, "fairseq/fairseq_albert.py", cannot=f"{LIGHTNING_CUDA}; {OLD_ADAMW}"),
    Script(
        STUDY, "pipeline/transformer_tutorial.py", "{python} transformer_tutorial.py",
        samples=None, steps=203, prints=r"\| epoch   1 \|\s+(?P<step>\d+)/.*loss\s+(?P<loss>[\d.]+)",
        means=lambda losses, step: sum(losses[: step + 1]) / 200, seeded=False, needs=(("torchtext", "."),),
        note="prints once in 200 steps; its first line divides 201 losses by 200",
    ),
    Script(STUDY, "pipeline/pipeline_tutorial.py", cannot=f"{NEEDS_GPUS}; its Pipe is no longer in torch"),
    Script(IFORMER, "main_DDP.py", cannot="it asserts that there is a GPU for each process"),
    Script(IFORMER, "main_PIPE.py", cannot="it asserts that there is a GPU, and returns where there are fewer than 4"),
    Script("catid/cifar10deepspeed", "train.py", cannot=f"{CUDA_CALLS}; its batches come from DALI on a GPU, by NCCL"),
    Script(
        LIGHTNING_TIMM, "src/train.py",
        cannot="it needs Lightning 1 (LightningLoggerBase) and Hydra 1.2, which does not load in Python 3.11",
    ),
    Script(
        "w251_hw9", "(a notebook)",
        cannot="no script: a notebook for two hosts with a GPU each; its loop is that of pytorch/examples imagenet",
    ),
    # --- pytorch/examples ---
    Script(
        EXAMPLES, "mnist/main.py", "{python} main.py --epochs 1 --log-interval 1",
        steps=None, makes=28, prints=EPOCH_LINE, needs=(("digits", "../data"),), note="evaluates at the end",
    ),
    Script(
        EXAMPLES, "mnist_rnn/main.py", "{python} main.py --epochs 1 --log-interval 1",
        steps=None, makes=28, prints=EPOCH_LINE, needs=(("digits", "../data"),),
    ),
    Script(
        EXAMPLES, "mnist_hogwild/main.py", "{python} main.py --epochs 1 --log-interval 1 --num-processes 2",
        processes=2, world=1, prints=r"(?P<pid>\d+)\s" + EPOCH_LINE, seeded=False, needs=(("digits", "../data"),),
        note="processes share one model without a lock, so no two runs are alike",
    ),
    Script(
        EXAMPLES, "vae/main.py", "{python} main.py --epochs 1 --log-interval 1",
        samples=128, steps=12, prints=EPOCH_LINE, means=times(1 / 128), needs=(("digits", "../data"),),
        note="prints the loss of a sample, and trains on that of the batch",
    ),
    Script(
        EXAMPLES, "siamese_network/main.py", "{python} main.py --epochs 1 --log-interval 1",
        steps=10, prints=EPOCH_LINE, seeded=False, needs=(("digits", "../data"),),
        note="draws its pairs without a seed",
    ),
    Script(
        EXAMPLES, "dcgan/main.py",
        "{python} main.py --dataset fake --dataroot {new} --outf {new} --niter 1 --ngf 16 --ndf 16 --manualSeed 1",
        samples=None, steps=6, prints=r"\[0/1\]\[(?P<step>\d+)/.*Loss_G: (?P<loss>[\d.]+)",
        note="two optimisers: a step ends with the generator's; the critic also takes what the generator makes",
    ),
    Script(
        EXAMPLES, "imagenet/main.py",
        "sh -c 'for rank in 1 0; do {python} main.py --dummy -a resnet18 -b 8 -j 0 -p 1 --epochs 1 --seed 1 "
        "--multiprocessing-distributed --dist-backend gloo --dist-url tcp://127.0.0.1:{port} --world-size 2 "
        "--rank $rank & done; wait'",
        processes=2, samples=8, steps=5, first=1, seeded=False,
        prints=r"Epoch: \[0\]\[\s*(?P<step>\d+)/.*?Loss (?P<loss>[-+\d.e]+) ",
        note="on a CPU it never averages gradients; its seed does not reach the processes that it spawns",
    ),
    Script(
        EXAMPLES, "regression/main.py", "{python} main.py",
        samples=32, steps=None, prints=r"Loss: [\d.]+ after (?P<backwards>\d+) batches",
        seeded=False,
        note="no optimiser: forward passes tell steps, from the 33rd on; it prints how many batches it took",
    ),
    Script(
        EXAMPLES, "word_language_model/main.py",
        "{python} main.py --data {data}/wikitext-2 --epochs 1 --emsize 32 --nhid 32 --nlayers 1 --log-interval 1",
        samples=None, steps=12, first=32, prints=r"\| epoch   1 \|\s+(?P<step>\d+)/.*loss\s+(?P<loss>[\d.]+)",
        note="no optimiser; sequences come first",
    ),
    Script(EXAMPLES, "distributed/FSDP2/example.py", cannot=NEEDS_GPUS),
    Script(EXAMPLES, "distributed/tensor_parallelism/tensor_parallel_example.py", cannot=NEEDS_GPUS),
    Script(EXAMPLES, "distributed/minGPT-ddp/mingpt/main.py", cannot=NEEDS_GPUS),
    # --- others ---
    Script(
        "karpathy/nanoGPT", "train.py",
        "{python} train.py config/train_shakespeare_char.py --dataset=wikitext --out_dir={new} --device=cpu "
        "--compile=False --dtype=float32 --eval_iters=2 --log_interval=1 --block_size=64 --batch_size=4 --n_layer=2 "
        "--n_head=2 --n_embd=64 --gradient_accumulation_steps=4",
        samples=16, prints=r"iter (?P<step>\d+): loss (?P<loss>[\d.]+)", means=times(4),
        needs=(("characters", "data/wikitext"),),
        note="accumulates 4 times: the loss given to backward is a fourth of the printed one",
    ),
    Script(
        "karpathy/minGPT", "projects/adder/adder.py", "{python} -m projects.adder.adder --trainer.num_workers=0",
        start=".", steps=45, prints=r"iter (?P<step>\d+): train loss (?P<loss>[\d.]+)",
        note="evaluates after the first step",
    ),
    Script(
        "karpathy/makemore", "makemore.py",
        "{python} makemore.py --device cpu --type mlp --max-steps 100 --work-dir {new} --num-workers 0",
        samples=32, steps=45, prints=r"step (?P<step>\d+) \| loss (?P<loss>[\d.]+)",
    ),
    Script(
        "horovod/horovod", "examples/pytorch/pytorch_synthetic_benchmark.py",
        f"{HOROVOD} pytorch_synthetic_benchmark.py --no-cuda --model resnet18 --batch-size 4 --num-warmup-batches 2 "
        "--num-batches-per-iter 2 --num-iters 3",
        processes=2, samples=4, steps=None, makes=8, note="prints no loss",
    ),
    Script(
        "horovod/horovod", "examples/pytorch/pytorch_mnist.py",
        f"{HOROVOD} pytorch_mnist.py --no-cuda --epochs 1 --batch-size 32 --log-interval 1 --data-dir data",
        processes=2, samples=32, steps=None, makes=28, prints=OF_RANK + EPOCH_LINE, needs=(("digits", "data"),),
    ),
    Script(
        ACCELERATE, "examples/by_feature/gradient_accumulation.py",
        f"env TESTING_MOCKED_DATALOADERS=1 {TORCHRUN} ../examples/by_feature/gradient_accumulation.py --cpu "
        "--gradient_accumulation_steps 2",
        start="mrpc", processes=2, samples=4, needs=PAIRS,
        note="prints no loss; evaluates after ten steps",
    ),
    Script(
        ACCELERATE, "examples/by_feature/local_sgd.py",
        f"env TESTING_MOCKED_DATALOADERS=1 {TORCHRUN} ../examples/by_feature/local_sgd.py --cpu",
        start="mrpc", processes=2, samples=2, needs=PAIRS, note="prints no loss",
    ),
    Script(
        "deepspeedai/DeepSpeedExamples", "training/cifar/cifar10_deepspeed.py",
        "deepspeed --hostfile /dev/null --num_gpus 2 --master_port {port} cifar10_deepspeed.py --deepspeed "
        "--dtype fp32 --log-interval 5",
        processes=2, samples=8, first=1, prints=r"\[ ?1,\s+(?P<step>\d+)\] loss:\s+(?P<loss>[\d.]+)",
        means=mean_of_last(5), seeded=False, needs=(("cifar", "data"),),
    ),
    Script(
        "facebookresearch/fairscale", "benchmarks/oss.py",
        "env TMPDIR=mnist {python} benchmarks/oss.py --cpu --world_size 2 --epochs 1 --batch_size 64 --model resnet18 "
        "--optim_type oss_ddp",
        start=".", processes=2, steps=None, makes=14, prints=r"Epoch 0 - .*Loss (?P<loss>[\d.]+)", means=last,
        needs=(("digits", "mnist"),), note="its optimiser is nested, and is given a closure",
    ),
    Script(
        "Lightning-AI/pytorch-lightning", "examples/fabric/image_classifier/train_fabric.py",
        "fabric run --accelerator cpu --strategy ddp --devices 2 --main-port {port} train_fabric.py --epochs 1 "
        "--batch-size 32 --log-interval 1",
        processes=2, samples=32, prints=EPOCH_LINE, needs=(("digits", "../../../Datasets"),),
    ),
    Script(
        "huggingface/pytorch-image-models", "train.py",
        "{python} train.py --dataset torch/cifar10 --data-dir cifar --model resnet18 --num-classes 10 --img-size 32 "
        "-b 16 --epochs 1 --log-interval 1 --workers 1 --device cpu --no-prefetcher --output {new}",
        samples=16, steps=10, prints=r"Train: 0 \[\s*(?P<step>\d+)/.*Loss: (?P<loss>[\d.]+) ",
        needs=(("cifar", "cifar"),),
        note="with more processes it gives DDP a device that is refused on a CPU",
    ),
    Script(
        "kuangliu/pytorch-cifar", "main.py", "script -qec 'stty cols 120; {python} main.py' /dev/null",
        samples=128, steps=4, first=1, seeded=False, means=mean_so_far,
        prints=r"Loss: (?P<loss>[\d.]+) \| Acc: .*?(?P<step>\d+)/391", needs=(("cifar", "data"),),
        note="wants a terminal; prints the mean so far; sets no seed",
    ),
)  # fmt: skip
