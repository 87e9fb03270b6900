"""Nodes joined by edges: what every edge carries, in which order nodes open, and what is refused about the whole."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from .errors import Problem
from .formats import INPUT, INPUT_MAKES, INPUT_REPORTS, PROGRESS, SESSION
from .node import Node, Overflow
from .ports import Ports

INPUT_PORTS = Ports(makes=INPUT_MAKES, reports=INPUT_REPORTS)


class DataEdge(Struct, frozen=True):
    """All that one node reads from another."""

    source: str
    reader: str
    formats: tuple[str, ...]
    capacity: int
    """Positions in flight."""
    overflow: Overflow = "block"
    feedback: bool = False


class ControlEdge(Struct, frozen=True):
    source: str
    reader: str
    event: str
    preempt: bool = False


class Topology(Struct, frozen=True):
    order: tuple[str, ...]
    """Node names, upstream first."""
    data: tuple[DataEdge, ...]
    controls: tuple[ControlEdge, ...]
    ends_turns: str
    """The node whose end is the end of a turn."""


class Joiner:
    """One use: joins the nodes of a profile and gathers what is wrong."""

    def __init__(self, nodes: tuple[Node, ...], publish: Mapping[str, tuple[str, ...]], capacity: int) -> None:
        self.nodes = {node.name: node for node in nodes}
        self.publish = publish
        self.capacity = capacity
        self.problems: list[Problem] = []
        self.controlled = {(control.source, control.event) for node in nodes for control in node.controls}

    def join(self) -> Topology | None:
        """None when anything is wrong: see `problems`."""
        data = [edge for node in self.nodes.values() for edge in self._data_edges(node)]
        controls = [edge for node in self.nodes.values() for edge in self._control_edges(node)]
        self._check_stages()
        if not any(edge.source == INPUT for edge in data):
            self._refuse("nodes", "no node reads 'input'")
        for node in self.nodes.values():
            self._check_required(node, data)
            self._check_one_sender(node, data)
            self._check_progress(node, data, controls)
        order = self._order(data)
        self._check_publish()
        ends = self._ends_turns(data)
        return None if self.problems else Topology(order, tuple(data), tuple(controls), ends)

    def _refuse(self, path: str, message: str) -> None:
        self.problems.append(Problem(path, message))

    def _ports(self, source: str) -> Ports | None:
        return INPUT_PORTS if source == INPUT else node.ports if (node := self.nodes.get(source)) else None

    def _check_sources(self, node: Node) -> None:
        sources = [*(item.node for item in node.data), *(control.source for control in node.controls)]
        if node.name in sources:
            self._refuse(f"nodes.{node.name}.inputs", f"node '{node.name}' reads itself")
        if unknown := [source for source in dict.fromkeys(sources) if self._ports(source) is None]:
            self._refuse(f"nodes.{node.name}.inputs", f"node '{node.name}' reads unknown inputs {unknown}")

    def _data_edges(self, node: Node) -> list[DataEdge]:
        self._check_sources(node)
        path, edges = f"nodes.{node.name}.inputs", []
        for source in dict.fromkeys(item.node for item in node.data):
            items = [item for item in node.data if item.node == source]
            bounds = [item for item in items if item.bounds]
            if len(bounds) > 1:
                self._refuse(path, f"node '{node.name}' bounds its edge from '{source}' twice")
            bound = bounds[0] if bounds else items[0]
            feedback = any(item.feedback for item in items)
            if feedback and (bound.overflow or "block") == "block":
                self._refuse(path, f"the feedback edge from '{source}' into '{node.name}' must not block")
            if (ports := self._ports(source)) is None or source == node.name:
                continue
            named = tuple(item.format for item in items if item.format)
            formats = self._formats(node, source, ports, named, whole=len(named) < len(items))
            edges.append(DataEdge(source, node.name, formats, bound.capacity or self.capacity, bound.overflow or "block", feedback))
        return edges

    def _formats(self, node: Node, source: str, ports: Ports, named: tuple[str, ...], *, whole: bool) -> tuple[str, ...]:
        path = f"nodes.{node.name}.inputs"
        offered = (*ports.makes, *ports.reports)
        if missing := [name for name in dict.fromkeys(named) if name not in offered]:
            self._refuse(path, f"node '{source}' does not produce {missing}")
        if diverted := [f"{source}:{name}" for name in dict.fromkeys(named) if (source, name) in self.controlled]:
            self._refuse(path, f"node '{node.name}' reads {diverted} as data, but a control edge takes them")
        takes = (*node.ports.reads, *(() if PROGRESS not in node.ports.takes else (PROGRESS,)))
        if misfits := [f"{source}:{name}" for name in dict.fromkeys(named) if name in offered and name not in takes]:
            self._refuse(path, f"node '{node.name}' cannot take {misfits}")
        free = [name for name in ports.makes if (source, name) not in self.controlled]
        fitting = [name for name in free if name in node.ports.reads] if whole else []
        if whole and not fitting:
            self._refuse(path, f"node '{node.name}' cannot take {[f'{source}:{name}' for name in free]}")
        return tuple(dict.fromkeys((*named, *fitting)))

    def _control_edges(self, node: Node) -> list[ControlEdge]:
        path, edges = f"nodes.{node.name}.inputs", []
        for control in node.controls:
            if (ports := self._ports(control.source)) is None:
                continue
            if control.event not in (*ports.makes, *ports.reports):
                self._refuse(path, f"node '{control.source}' does not produce ['{control.event}']")
            elif control.event not in (*node.ports.takes, *node.ports.reads):
                self._refuse(path, f"node '{node.name}' cannot take ['{control.source}:{control.event}']")
            edges.append(ControlEdge(control.source, node.name, control.event, control.preempt))
        return edges

    def _check_stages(self) -> None:
        holders: dict[str, list[str]] = {}
        for node in self.nodes.values():
            for stage in node.stages:
                holders.setdefault(stage, []).append(node.name)
        for stage, names in holders.items():
            if len(names) > 1:
                self._refuse("nodes", f"nodes {names} share the stage '{stage}'; one node may hold it")

    def _check_required(self, node: Node, data: list[DataEdge]) -> None:
        incoming = {name for edge in data if edge.reader == node.name for name in edge.formats}
        incoming |= {control.event for control in node.controls}
        missing = [group for group in node.ports.requires if not incoming & set(group)]
        if missing:
            self._refuse(
                f"nodes.{node.name}.inputs", f"no input of node '{node.name}' produces {[name for group in missing for name in group]}"
            )

    def _check_one_sender(self, node: Node, data: list[DataEdge]) -> None:
        senders: dict[str, list[str]] = {}
        for edge in data:
            if edge.reader == node.name:
                for name in edge.formats:
                    senders.setdefault(name, []).append(edge.source)
        for name, sources in senders.items():
            if len(sources) > 1 and name != PROGRESS:
                self._refuse(f"nodes.{node.name}.inputs", f"node '{node.name}' takes {name} from {sources}; one source sends it")

    def _check_progress(self, node: Node, data: list[DataEdge], controls: list[ControlEdge]) -> None:
        sources = [edge.source for edge in data if edge.reader == node.name and PROGRESS in edge.formats]
        sources += [edge.source for edge in controls if edge.reader == node.name and edge.event == PROGRESS]
        if len(dict.fromkeys(sources)) > 1:
            named = list(dict.fromkeys(sources))
            self._refuse(f"nodes.{node.name}.inputs", f"node '{node.name}' takes {PROGRESS} from {named}; one source reports it")

    def _order(self, data: list[DataEdge]) -> tuple[str, ...]:
        above: dict[str, set[str]] = {name: set() for name in self.nodes}
        for edge in data:
            if edge.source != INPUT and not edge.feedback:
                above[edge.reader].add(edge.source)
        reach = {name: _reachable(name, above) for name in above}
        looped = [name for name in above if name in reach[name]]
        while looped:
            loop = [name for name in looped if name == looped[0] or (name in reach[looped[0]] and looped[0] in reach[name])]
            self._refuse("nodes", f"nodes {loop} form a cycle of data edges; declare the input that closes it with feedback: true")
            looped = [name for name in looped if name not in loop]
        order: list[str] = []
        while not self.problems and len(order) < len(above):
            order.append(next(name for name in above if name not in order and above[name] <= set(order)))
        return tuple(order)

    def _check_publish(self) -> None:
        if unknown := [name for name in self.publish if name not in self.nodes]:
            self._refuse("publish", f"publish names unknown nodes {unknown}")
        for name, formats in self.publish.items():
            if (node := self.nodes.get(name)) is None:
                continue
            offered = [kind for kind in (*node.ports.makes, *node.ports.reports) if (name, kind) not in self.controlled]
            if missing := [kind for kind in formats if kind not in offered]:
                self._refuse(f"publish.{name}", f"node '{name}' does not produce {missing}")
        openers = [name for name, node in self.nodes.items() if node.ports.opens_turns]
        if silent := [name for name in openers if SESSION not in self.publish.get(name, ())]:
            self._refuse("publish", f"nodes {silent} open turns and must publish '{SESSION}'")

    def _ends_turns(self, data: list[DataEdge]) -> str:
        """A node further down speaks for those above it: what it publishes last ends the turn."""
        published = [name for name, formats in self.publish.items() if formats and name in self.nodes]
        enders = [name for name in published if self.nodes[name].ports.ends_turns]
        below: dict[str, set[str]] = {name: set() for name in self.nodes}
        for edge in data:
            if edge.source != INPUT and not edge.feedback:
                below[edge.source].add(edge.reader)
        last = [name for name in enders if not any(other in _reachable(name, below) for other in enders if other != name)]
        if len(last) > 1:
            self._refuse("publish", f"turns end twice: {last} all publish turn.done")
        elif not enders:
            self._refuse("publish", "no published node ends turns")
        return last[0] if last else ""


def _reachable(start: str, links: Mapping[str, set[str]]) -> set[str]:
    found: set[str] = set()
    waiting = list(links[start])
    while waiting:
        if (name := waiting.pop()) not in found:
            found.add(name)
            waiting += links[name]
    return found
