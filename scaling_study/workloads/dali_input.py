"""Images as NVIDIA DALI reads them: one pipeline a rank, on its cores or its GPU.                          [torch]

    ids of our order --> files read and decoded, or pixels --> crop, resize --> mirror, normalise --> batches
                         numbers of (seed, epoch, sample): rectangle, mirrored or not

DALI's readers and random operators would each have an order and a state of their own. So the pipeline is fed, ahead of
time, with the names or pixels of our ids and the numbers that views.py draws for them. A pipeline that met a damaged
file is of no more use: where such files are replaced, a new one begins with the batches that were under way.
"""

from __future__ import annotations

import functools
import itertools
import os
from collections import deque
from collections.abc import Callable, Generator, Iterator
from typing import Any

import numpy as np
import torch
from nvidia.dali import Pipeline, fn, math, types
from nvidia.dali.plugin.pytorch import feed_ndarray
from PIL import Image

from scaling_study.workloads.cifar10 import MEAN, STD
from scaling_study.workloads.feed import AHEAD, Drawn
from scaling_study.workloads.views import KINDS, OF_FILES, PAD, SQUARE, Reading, Samples, opened, sides, uniform

FLOATS = {
    "dtype": types.DALIDataType.FLOAT,
    "output_layout": "CHW",
    "mean": [255 * mean for mean in MEAN],
    "std": [255 * deviation for deviation in STD],
}
Fed = tuple[Any, ...]  # of each input of a pipeline one array, or a list of arrays of unlike lengths


class DaliBatches:
    """Makes batches that are drawn: (batch, 3, side, side) float32 on the rank's device."""

    def __init__(self, samples: Samples, reading: Reading) -> None:
        self.samples, self.reading = samples, reading
        self.on_gpu = reading.device.type == "cuda"
        self.kind = (OF_FILES if samples.pixels is None else KINDS).get(reading.augmentation)
        self.black = black_file(reading.side)

    def __call__(self, drawn: Iterator[Drawn]) -> Generator[torch.Tensor, None, None]:
        under_way: deque[Drawn] = deque()  # fed, and not made yet
        coming = drawn

        def fed() -> Fed:
            under_way.append(next(coming))
            return self.inputs(under_way[-1])

        while (first := next(coming, None)) is not None:
            coming = itertools.chain([first], coming)
            pipeline = self.pipeline(len(first.ids), fed)
            try:
                while True:
                    (images,) = pipeline.run()
                    under_way.popleft()
                    yield self.taken(images)
            except StopIteration:  # all that was drawn is made
                return
            except RuntimeError as error:
                self.meet_damaged(under_way, error)
                coming = itertools.chain(list(under_way), coming)
                under_way.clear()
            finally:  # by its own finaliser, and now: where a forked process collects the garbage, it waits for ever
                pipeline.__del__()

    def inputs(self, batch: Drawn) -> Fed:
        """The arrays that a batch is made from: names or pixels, and what augmentation draws."""
        samples, ids, kind = self.samples, batch.ids, self.kind
        if samples.pixels is not None:
            what: Any = samples.pixels[ids].numpy()
        else:
            what = [np.frombuffer(os.fsencode(self.file(id)), np.uint8) for id in ids.tolist()]
        if kind is None:
            return (what,)
        mirrored, a, b, x, y = (uniform(self.reading.seed, batch.epoch, ids, number) for number in range(5))
        mirror = (mirrored < kind.mirrored).int().numpy()
        if kind.area is None and samples.pixels is not None:
            return what, mirror, ((torch.stack([a, b], dim=1) * (2 * PAD + 1)).int() - PAD).numpy()
        shares = (b, a, b, a) if kind.area is None else (*reversed(sides(kind, a, b)), y, x)
        return what, mirror, torch.stack(shares, dim=1).float().numpy()

    def file(self, id: int) -> str:
        """The name of a sample's file, or of the black image in its place."""
        file = self.samples.file(id)
        return self.black if file in self.reading.damaged.met else str(file)

    def pipeline(self, batch: int, source: Callable[[], Fed]) -> Any:
        """From what `inputs` has to (batch, 3, side, side)."""
        reading, in_memory = self.reading, self.samples.pixels is not None
        built = Pipeline(
            batch_size=batch,
            num_threads=reading.cores,
            device_id=reading.device.index if self.on_gpu else None,
            prefetch_queue_depth=AHEAD,
        )
        with built:
            layouts = ["HWC" if in_memory else "", *(["", ""] if self.kind else [])]
            what, *drawn = fn.external_source(source=source, num_outputs=len(layouts), layout=layouts)
            mirror, numbers = drawn or (0, None)
            pixels = self.of_memory(what, numbers) if in_memory else self.of_files(what, numbers)
            built.set_outputs(fn.crop_mirror_normalize(pixels, **FLOATS, mirror=mirror))
        built.build()
        return built

    def of_memory(self, pixels: Any, numbers: Any) -> Any:
        """Images of the wanted side from square ones. `numbers`: where the window is, or height, width, y and x."""
        side = (self.reading.side, self.reading.side)
        pixels = pixels.gpu() if self.on_gpu else pixels
        if self.kind and self.kind.area:
            return self.rectangle(pixels, numbers[0], numbers[1], numbers)
        assert self.samples.pixels is not None
        if tuple(self.samples.pixels.shape[1:3]) != side:
            pixels = fn.resize(pixels, size=side)
        if self.kind:
            pixels = fn.slice(pixels, start=numbers, shape=side, axes=(0, 1), out_of_bounds_policy="pad", fill_values=0)
        return pixels

    def of_files(self, names: Any, numbers: Any) -> Any:
        """Images of the wanted side from names of files. `numbers`: height and width, were they square, y and x.

        PIL, and so the other inputs, leave an image as its camera was held."""
        encoded = fn.io.file.read(names)
        device = "mixed" if self.on_gpu else "cpu"
        pixels = fn.decoders.image(
            encoded, device=device, output_type=types.DALIImageType.RGB, adjust_orientation=False
        )
        if self.reading.whole:
            return fn.resize(pixels, size=(self.reading.side, self.reading.side))
        shape = fn.cast(fn.peek_image_shape(encoded, adjust_orientation=False), dtype=types.DALIDataType.FLOAT)
        height, width = shape[0], shape[1]
        if self.kind and self.kind.area:
            narrower = math.sqrt(height / width)
            down, across = math.min(numbers[0] / narrower, 1.0), math.min(numbers[1] * narrower, 1.0)
        else:
            square = SQUARE * math.min(height, width)
            down, across = square / height, square / width
        return self.rectangle(pixels, down, across, numbers)

    def rectangle(self, pixels: Any, height: Any, width: Any, numbers: Any) -> Any:
        """A rectangle of this height and width, as shares of the image's; at shares of the room it leaves, or in the
        middle."""
        y, x = (0.5, 0.5) if numbers is None else (numbers[2], numbers[3])
        top, left = y * (1.0 - height), x * (1.0 - width)
        begin, end = fn.stack(top, left), fn.stack(math.min(top + height, 1.0), math.min(left + width, 1.0))
        size = (self.reading.side, self.reading.side)
        return fn.resize(pixels, size=size, roi_start=begin, roi_end=end, roi_relative=True)

    def taken(self, images: Any) -> torch.Tensor:
        """A copy: the pipeline uses its own memory again."""
        made = images.as_tensor()
        batch = torch.empty(made.shape(), dtype=torch.float32, device=self.reading.device)
        feed_ndarray(made, batch, cuda_stream=torch.cuda.current_stream(batch.device) if self.on_gpu else None)
        return batch

    def meet_damaged(self, under_way: deque[Drawn], error: RuntimeError) -> None:
        """Find the files of these batches that no pipeline can decode. Raises `error` where none of them is one."""
        met = len(self.reading.damaged.met)
        files = (self.samples.file(id) for batch in under_way for id in batch.ids.tolist() if self.samples.files)
        for file in files:
            if file not in self.reading.damaged.met:
                try:
                    opened(file)
                except SystemExit as why:
                    self.reading.damaged.meet(file, str(why))
        if len(self.reading.damaged.met) == met:
            raise error


@functools.cache
def black_file(side: int) -> str:
    """The name of a black image that is in memory alone, for as long as the process lives."""
    file = os.memfd_create("black.png")
    with os.fdopen(os.dup(file), "wb") as stream:
        Image.new("RGB", (side, side)).save(stream, "PNG")
    return f"/proc/self/fd/{file}"
