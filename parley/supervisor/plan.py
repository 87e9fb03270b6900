"""What is started: the processes of a profile, with their settings as environment variables."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from . import mps
from .errors import MissingBinary
from .folder import RunFolder
from .placement import AUTO, CPU, DEVICE, Placement, Sharing
from .ready import Readiness, ReadyFile, StoreAnswers
from .settings import SupervisorSettings
from .store import find_store, store_command

STAGE_SERVICES = {"vad": "vad_svc", "thinker": "thinker_svc", "talker": "talker_svc", "vocoder": "vocoder_svc"}
GATEWAY = "gateway"

# one thread a model is fastest on small CPUs, and pools of six processes would fight over two cores
THREADS = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS"), "1") | {
    "TOKENIZERS_PARALLELISM": "false"
}


class ServiceSpec(Struct, frozen=True):
    """One process: how it is started and how it shows that it is ready. env is added to the supervisor's own."""

    name: str
    command: tuple[str, ...]
    readiness: Readiness
    env: dict[str, str] = {}


class SharedCard(Struct, frozen=True):
    """A daemon through which services share a card. env: theirs, when it serves. said, otherwise: what people are told of it."""

    daemon: ServiceSpec
    services: tuple[str, ...]
    env: dict[str, str]
    said: str
    otherwise: str


class Plan(Struct, frozen=True):
    """The store starts first, then the daemons of shared cards, then all others together. They stop in the order gateway, services, store,
    daemons.
    """

    store: ServiceSpec
    services: tuple[ServiceSpec, ...]
    gateway: ServiceSpec
    cards: tuple[SharedCard, ...] = ()
    said: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    def __iter__(self) -> Iterator[ServiceSpec]:
        yield self.store
        yield from (card.daemon for card in self.cards)
        yield from self.services
        yield self.gateway

    def sharing(self, card: SharedCard) -> Plan:
        """Its daemon serves: the services of the card are told so."""
        told = [replace(spec, env={**spec.env, **card.env}) if spec.name in card.services else spec for spec in self.services]
        return replace(self, services=tuple(told))

    def without(self, card: SharedCard) -> Plan:
        """Its daemon does not."""
        return replace(self, cards=tuple(each for each in self.cards if each is not card))

    def daemon_of(self, service: str) -> ServiceSpec | None:
        """Through which it shares a card."""
        return next((card.daemon for card in self.cards if service in card.services), None)


def embedded_plan(
    folder: RunFolder,
    *,
    host: str,
    port: int,
    profile: Path,
    placement: Placement | None = None,
    settings: SupervisorSettings | None = None,
) -> Plan:
    """Everything on this machine: an embedded store, the four stage services, and a gateway on host:port. Raises MissingBinary.

    Each service has the settings that the profile gives it, beside those of this process's own environment. Drains are short: whoever stops
    the whole house has nowhere to move a conversation to.
    """
    chosen, placed = service_settings(profile), placement or Placement()
    shared = {**THREADS, "PYTHONUNBUFFERED": "1", "PARLEY_REDIS_URL": f"unix://{folder.store_socket}"}

    def python(name: str, module: str, env: dict[str, str]) -> ServiceSpec:
        ready = folder.ready_file(name)
        return ServiceSpec(name, (sys.executable, "-m", module), ReadyFile(ready), {**shared, **env, "PARLEY_READY_FILE": str(ready)})

    private = {"PARLEY_BIND": "127.0.0.1:0", "PARLEY_HTTP_BIND": "127.0.0.1:0", "PARLEY_DRAIN_S": "1"}
    # one replica of each stage: giving it up early would end the conversation, and small machines stall
    patience = {"PARLEY_PULSE_TIMEOUT_MS": "10000"}
    public = patience | {"PARLEY_HTTP_BIND": f"{host}:{port}", "PARLEY_PROFILE": str(profile), "PARLEY_DRAIN_TIMEOUT_MS": "500"}
    return Plan(
        store=ServiceSpec("store", store_command(find_store(), folder.store_socket), StoreAnswers(folder.store_socket)),
        services=tuple(
            python(name, module, private | chosen.get(name, {}) | placed.env.get(name, {})) for name, module in STAGE_SERVICES.items()
        ),
        gateway=python(GATEWAY, "gateway", chosen.get(GATEWAY, {}) | public),
        cards=tuple(_shared_card(each, number, folder, settings or SupervisorSettings()) for number, each in enumerate(placed.sharings)),
        said=placed.said,
        warnings=placed.warnings,
    )


def _shared_card(sharing: Sharing, number: int, folder: RunFolder, settings: SupervisorSettings) -> SharedCard:
    name = f"mps-{number}"
    ready, own = folder.ready_file(name), folder.share_folder(name)
    program = (sys.executable, "-I", "-S", mps.__file__, mps.CONTROL, str(own), sharing.card)
    command = (*program, str(settings.mps_start_s), str(settings.mps_stop_s))
    daemon = ServiceSpec(name, command, ReadyFile(ready), {"PARLEY_READY_FILE": str(ready)})
    env = {**sharing.env, **mps.folders(own)}
    return SharedCard(daemon, sharing.services, env, sharing.said, sharing.otherwise)


def devices(profile: Path, device: str | None) -> dict[str, str]:
    """By service that a profile sets up: "cpu", "cuda", "cuda:N" or "auto". device: the operator's, instead of "auto".

    Raises MissingBinary.
    """
    stages = {name: settings for name, settings in service_settings(profile).items() if name != GATEWAY}
    wanted = {name: settings.get(DEVICE) or device or CPU for name, settings in stages.items()}
    return {name: device or AUTO if each == AUTO else each for name, each in wanted.items()}


def service_settings(profile: Path) -> dict[str, dict[str, str]]:
    """By service: the settings under `services` in a profile. Raises MissingBinary for a service that is not there.

    A file that cannot be read gives none: the gateway says what is wrong with it.
    """
    import yaml

    try:
        document = yaml.safe_load(profile.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        return {}
    found = document.get("services") if isinstance(document, dict) else None
    if not isinstance(found, dict):
        return {}
    if unknown := [name for name in found if name not in (*STAGE_SERVICES, GATEWAY)]:
        raise MissingBinary(f"profile '{profile.stem}' names services that are not there: {', '.join(map(str, unknown))}")
    return {
        name: {str(key): str(value) for key, value in settings.items()} for name, settings in found.items() if isinstance(settings, dict)
    }


def find_profile(profile: str) -> Path:
    """A path to a profile, or a profile's name: looked for in `profiles/` here, then beside the package. Raises MissingBinary."""
    here, beside = Path("profiles"), Path(__file__).parents[2] / "profiles"
    for path in (Path(profile), here / f"{profile}.yaml", beside / f"{profile}.yaml"):
        if path.is_file():
            return path.resolve()
    raise MissingBinary(f"there is no profile '{profile}': name one of {beside} or a path to a YAML file")
