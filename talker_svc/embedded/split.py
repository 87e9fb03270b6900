"""Cuts a Piper voice in two: `frontend.onnx` (phonemes to latents) and `decoder.onnx` (latents to samples).

Run once when the models are fetched: `python -m talker_svc.embedded.split SRC.onnx OUTDIR`.

The frontend is rewritten so that it draws no random numbers of its own: the duration noise becomes an input, and
the latents leave as mean and deviation. A reply can then be made again, bit by bit, from its seed.

The frontend reads `input` int64 [1, phonemes], `input_lengths` int64 [1], `scales` float32 [3] (noise, length, duration noise) and
`duration_noise` float32 [1, 2, phonemes]; it makes `mean` and `deviation`, float32 [1, 192, frames].
The decoder reads `latents` float32 [1, 192, frames] and `mask` float32 [1, 1, frames]; it makes `output`, 256 float32 samples a frame.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

FRONTEND = "frontend.onnx"
DECODER = "decoder.onnx"


class NotAVoice(ValueError):
    """The file is not a single-speaker Piper voice of the expected make."""


def split(source: Path, folder: Path) -> None:
    """Writes `frontend.onnx` and `decoder.onnx` into `folder`, each one atomically.

    Raises NotAVoice when the graph is not a single-speaker VITS voice, OSError for files.
    """
    import onnx
    from streaming_vits import graph

    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".split-") as scratch:
        try:
            halves = graph.split(source, scratch, verbose=False)
        except ValueError as error:
            raise NotAVoice(str(error)) from error
        if halves.seam.g is not None:
            raise NotAVoice("voices with several speakers are not supported")
        frontend = onnx.load(str(Path(scratch) / halves.frontend))
        decoder = onnx.load(str(Path(scratch) / halves.decoder))
        _open_noise(frontend, halves.seam.z_p)
        _rename(decoder, {halves.seam.z_p: "latents", halves.seam.mask: "mask"})
        for model, name in ((frontend, FRONTEND), (decoder, DECODER)):
            onnx.checker.check_model(model)
            whole = Path(scratch) / name
            onnx.save(model, str(whole))
            whole.replace(folder / name)


def _open_noise(model: Any, latents: str) -> None:
    """Duration noise becomes an input; mean and deviation replace the drawn latents as outputs."""
    import onnx

    graph = model.graph
    made = {name: node for node in graph.node for name in node.output}
    drawn = [node for node in graph.node if node.op_type == "RandomNormalLike"]
    if len(drawn) != 2:
        raise NotAVoice("the graph must draw duration noise and latent noise, and nothing else")
    durations, prior = drawn
    total = made[latents]
    scaled_name, scaled = next(((name, made[name]) for name in total.input if made[name].op_type == "Mul"), ("", None))
    mean = next((name for name in total.input if name != scaled_name), "")
    drawing = next((made[name] for name in scaled.input if name in made and prior.output[0] in made[name].input), None) if scaled else None
    if scaled is None or drawing is None or drawing.op_type != "Mul":
        raise NotAVoice("latents are not made as mean + noise * deviation * scale")

    spread = next(name for name in drawing.input if name != prior.output[0])
    for place, name in enumerate(scaled.input):
        if name == drawing.output[0]:
            scaled.input[place] = spread
    for node in (durations, prior, drawing, total):
        graph.node.remove(node)
    tensor = onnx.TensorProto.FLOAT
    graph.input.append(onnx.helper.make_tensor_value_info(durations.output[0], tensor, [1, 2, "phonemes"]))
    channels = next(dim.dim_value for value in graph.output if value.name == latents for dim in value.type.tensor_type.shape.dim[1:2])
    del graph.output[:]
    for name in (mean, scaled_name):
        graph.output.append(onnx.helper.make_tensor_value_info(name, tensor, [1, channels or "channels", "frames"]))
    del graph.value_info[:]
    _rename(model, {durations.output[0]: "duration_noise", mean: "mean", scaled_name: "deviation"})


def _rename(model: Any, names: dict[str, str]) -> None:
    graph = model.graph
    for value in (*graph.input, *graph.output, *graph.value_info):
        value.name = names.get(value.name, value.name)
    for node in graph.node:
        for places in (node.input, node.output):
            for place, name in enumerate(places):
                places[place] = names.get(name, name)


def main(arguments: list[str]) -> int:
    """Exit code 0 when both files are written, 1 when the voice cannot be cut, 2 for wrong usage."""
    if len(arguments) != 2:
        print("usage: python -m talker_svc.embedded.split SRC.onnx OUTDIR", file=sys.stderr)
        return 2
    try:
        split(Path(arguments[0]), Path(arguments[1]))
    except (NotAVoice, OSError) as error:
        print(f"cannot split {Path(arguments[0]).name}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
