"""The tape: what each layer saw and what came back to it, for every record, from one backward pass.

A trainable layer's output passes through a tap. On the way back the tap keeps the gradient of the layer's output;
with the layer's input that is all one needs for per-example norms and for the clip-weighted sum (book-keeping: Bu et
al. 2023, arXiv 2210.00038). Parameters ask for no gradient during the forward pass, so the ordinary weight gradient
is never computed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.utils._pytree import tree_map

from privypurse.errors import InvalidInput
from privypurse.training.forms import leaves
from privypurse.training.gradients.as_written import AsWritten
from privypurse.training.gradients.expanded_parameters import EXPANDED_PARAMETER, takes_expanded_parameters
from privypurse.training.gradients.find_layouts import KnownLayouts, bound
from privypurse.training.gradients.for_each_record import for_each_record
from privypurse.training.gradients.generic import GENERIC, require_no_draws
from privypurse.training.gradients.parametrised import ParametrisedRule, parametrised_rule
from privypurse.training.gradients.recomputation import (
    Recomputation,
    lend_inputs,
    lent,
    no_gradient_comes,
    refuse_reentrant,
    saved_by_others,
    take_inputs_back,
    watch_again,
)
from privypurse.training.gradients.refusals import NoWayBack, refuse_replaced, require_records, require_tensors
from privypurse.training.gradients.rule import Call, InParts, Part, Rule, rule_of
from privypurse.training.gradients.views import settle
from privypurse.training.isolation.graph import nodes
from privypurse.training.isolation.layers import require_known_apart
from privypurse.training.isolation.replaced_records import detached
from privypurse.training.step_randomness import keyed, seeds


class _Tap(torch.autograd.Function):
    """The identity on some outputs of a layer; its backward leaves their gradients with the call."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, call: Call, *outputs: Tensor) -> tuple[Tensor, ...]:
        ctx.call = call
        lend_inputs(ctx, call)
        # The same memory, but no view in autograd's eyes: layers behind may work in place.
        return tuple(output.detach() for output in outputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        if ctx.call.open is not None and not ctx.call.open():
            raise InvalidInput(
                f"a gradient came to layer {ctx.call.path} past the model's output, of something that was kept on "
                "the way (by a hook, in a global): that is no loss of single records. Let the model give it back"
            )
        if ctx.call.gradient is not None:
            raise InvalidInput("backward was run twice through one forward pass; run the forward pass again")
        take_inputs_back(ctx, ctx.call)
        require_records(ctx.call)
        ctx.call.gradient, *others = ctx.call.layout.to_front([gradient.detach() for gradient in gradients])
        ctx.call.other_output_gradients = tuple(others)
        settle(ctx.call)
        return None, None, *gradients


_STRANGER = (
    "requires gradients, but was no parameter of the model to be trained when training began: its gradient would be "
    "neither clipped nor noisy. Make it a parameter of the model and its optimizer before (to thaw layers later, "
    "begin a new run with a plan of its own), or let it require none"
)


@dataclass
class Tape:
    """The calls of one forward pass over so many records, each of them in so many views."""

    records: int
    calls: list[Call] = field(default_factory=list)
    open: Callable[[], bool] | None = None
    """Whether gradients may come back now; without, they always may."""
    constants: frozenset[int] = frozenset()
    """The ids of inputs that are the same for all records, whatever their shape."""
    views: int = 1

    @property
    def rows(self) -> int:
        """What the model takes for records: every view of each."""
        return self.records * self.views

    @property
    def device(self) -> torch.device:
        return self.finished()[0].output_gradient.device

    def finished(self) -> list[Call]:
        """The calls through which a gradient came back."""
        return [call for call in self.calls if call.gradient is not None]


def watched_layers(model: nn.Module, prefix: str = "") -> Iterator[tuple[str, nn.Module, Rule]]:
    """The layers to be watched: each handled by its rule, or as a whole where no rule knows it."""
    require_known_apart([("", model)], prefix)
    rule = rule_of(type(model)) or parametrised_rule(model)
    # The weight of a parametrised layer is made of what lies in modules inside.
    whole = parametrize.is_parametrized(model) or (rule is not None and rule.whole_module)
    own = [parameter for parameter in model.parameters(recurse=whole) if parameter.requires_grad]
    listed = _in_lists(model)
    if own or listed:
        expanded = not listed and takes_expanded_parameters(model, own)
        rule = rule or (EXPANDED_PARAMETER if expanded else GENERIC)
        if rule.whole_module:
            require_known_apart(model.named_modules(), prefix)
        if rule is GENERIC or isinstance(rule, ParametrisedRule):
            require_no_draws(model, prefix)
        yield prefix, model, rule
        if rule.whole_module:
            return
    for name, child in model.named_children():
        yield from watched_layers(child, f"{prefix}.{name}" if prefix else name)


def _in_lists(model: nn.Module) -> list[nn.Parameter]:
    """Parameters in lists and dictionaries of a module: it uses them itself, since these are never called."""
    lists = [child for child in model.children() if isinstance(child, nn.ParameterDict | nn.ParameterList)]
    return [parameter for child in lists for parameter in child.parameters() if parameter.requires_grad]


class Recorder:
    """Watches a model: which layers are trainable, by which rule each is handled, under which name."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.views = 1
        """How often each record goes through the model, in `recorded`; its gradient is the mean."""
        self.key: Callable[[], bytes] | None = None
        """Where keys of what is random in a forward pass come from; without, it draws as it would anyway."""
        found = {id(module): (name, module, rule) for name, module, rule in watched_layers(model)}
        self.layers: list[tuple[str, nn.Module, Rule]] = list(found.values())  # a layer with two parents once
        self.as_written = AsWritten(model)
        self._parameters = list(model.named_parameters())
        names = {id(parameter): name for name, parameter in self._parameters}
        self._watched = [(module, rule, _own(module, rule, names)) for _, module, rule in self.layers]
        self.trainable = {name: parameter for name, parameter in self._parameters if parameter.requires_grad}
        """The parameters to be trained, by name; a shared one once."""
        self._trainable = list(self.trainable.values())
        self._frozen = [(name, value) for name, value in self._parameters if not value.requires_grad]
        self._buffers = [
            (module, name, f"{prefix}.{name}" if prefix else name)
            for prefix, module in model.named_modules()
            for name, _ in module.named_buffers(recurse=False)
        ]
        self._anchors: dict[torch.device, Tensor] = {}
        self._recomputation = Recomputation(self._record_again)
        self.runs_again = False
        """Whether parts of the last forward pass run again in its backward pass."""
        self.one_shape = True
        """Whether that forward pass has the same shapes for every batch of as many records."""
        self.for_each = for_each_record(model)
        others = [(module, rule) for _, module, rule in self.layers if rule is not EXPANDED_PARAMETER]
        whole = [each for each in others if not isinstance(each[1], InParts)]
        self.layouts = KnownLayouts(model, whole, self.for_each)

    @contextmanager
    def _recording(self, tape: Tape) -> Iterator[None]:
        """Every forward pass inside is written onto ``tape``, and parameters ask for no gradient."""
        with ExitStack() as undo:
            undo.callback(self._ask_for_gradients, True)
            self._ask_for_gradients(False)
            self.for_each(undo, tape.rows)
            for module, rule, names in self._watched:
                if rule is EXPANDED_PARAMETER:
                    self._expand(tape, undo, module, names)
                elif isinstance(rule, InParts):
                    refuse_replaced(module)
                    _run_in_parts(undo, module, partial(rule.run, module, self._part(tape, module, names)))
                else:
                    hook = self._hook(tape, module, rule, names)
                    undo.enter_context(module.register_forward_hook(hook, prepend=True, with_kwargs=True))
            yield

    def _record_again(self, undo: ExitStack, records: int) -> None:
        """What runs now runs as in `_recording`, onto a tape that nobody reads."""
        undo.enter_context(self.as_written())
        nowhere = Tape(records, open=no_gradient_comes)
        self.for_each(undo, records)
        for module, rule, names in self._watched:
            if rule is EXPANDED_PARAMETER:
                with torch.enable_grad():
                    self._expand(nowhere, undo, module, names)
            elif isinstance(rule, InParts):
                run = partial(rule.run, module, self._part(nowhere, module, names))
                _run_in_parts(undo, module, run, only=saved_by_others)
            else:
                own = [module.get_parameter(local) for local in names]
                watch_again(undo, module, own, self._hook(nowhere, module, rule, names))

    def _expand(self, tape: Tape, undo: ExitStack, module: nn.Module, names: dict[str, str]) -> None:
        for local in names:
            module.__dict__[local] = self._copies(tape, module, local, names[local])  # hides the parameter
            undo.callback(module.__dict__.pop, local, None)

    def _ask_for_gradients(self, asked: bool) -> None:
        for parameter in self._trainable:
            parameter.requires_grad = asked

    def _copies(self, tape: Tape, module: nn.Module, local: str, name: str) -> Tensor:
        """A copy of an expanded parameter for each record."""
        value = module.get_parameter(local).detach()
        copies = value.expand(tape.rows, *value.shape[1:])
        return self._tapped(tape, Call(module, EXPANDED_PARAMETER, {local: name}, (copies,)), copies)[0]

    def _tapped(self, tape: Tape, call: Call, *outputs: Tensor) -> tuple[Tensor, ...]:
        """Outputs of a layer, with the call on the tape."""
        call.open, call.views = tape.open, tape.views
        tape.calls.append(call)
        return _Tap.apply(self._anchor(outputs[0].device), call, *outputs)  # type: ignore[no-untyped-call,no-any-return]

    def _part(self, tape: Tape, module: nn.Module, names: dict[str, str]) -> Part:
        """What watches the parts of a layer."""

        def part(rule: Rule, parameters: dict[str, str], output: Tensor) -> tuple[Tensor, Call | None]:
            refuse_reentrant()
            trained = {local: names[own] for local, own in parameters.items() if own in names}
            if not trained:
                return output, None
            held = nn.Module()  # with the rule's names of parameters
            for local, own in parameters.items():
                held.register_parameter(local, module.get_parameter(own))
            call = Call(held, rule, trained, ())
            return self._tapped(tape, call, output)[0], call

        return part

    def _hook(self, tape: Tape, module: nn.Module, rule: Rule, names: dict[str, str]) -> Callable[..., Any]:
        layout = self.layouts.of(module)

        def hook(_: nn.Module, inputs: tuple[Any, ...], options: dict[str, Any], output: Any) -> Any:
            refuse_reentrant()
            inputs, options = bound(module, tuple(inputs), options)
            require_tensors(module, inputs, output)
            self.layouts.require(module)
            inputs, options = tree_map(detached, inputs), tree_map(detached, options) if options else {}
            inputs, options = layout.to_front(layout.marked((inputs, options)))
            if layout.one_row and not rule.takes_all_apart:
                inputs = tuple(layout.for_each(value, tape.rows) for value in inputs)
            call = Call(module, rule, names, inputs, options, layout=layout)
            if layout.one_row and isinstance(output, Tensor):
                output = layout.for_each(output, tape.rows).contiguous()  # layers behind may work in place
            several = output if isinstance(output, tuple) else (output,)
            count = 2 if isinstance(module, nn.LSTMCell) else 1  # outputs that are watched
            tapped = self._tapped(tape, call, *several[:count])
            return (*tapped, *tree_map(self._refusing, several[count:])) if isinstance(output, tuple) else tapped[0]

        return hook

    def forward(self, tape: Tape, *inputs: Any, **options: Any) -> Any:
        """The model's output, with its trainable layers on the tape and no weight gradient asked for."""
        self._recomputation.end()  # of a backward pass that broke off
        before = self._versions()
        thawed = next((name for name, value in self._frozen if value.requires_grad), None)
        if thawed is not None:
            raise InvalidInput(f"{thawed} {_STRANGER}")
        frozen = next((name for name, value in self.trainable.items() if not value.requires_grad), None)
        if frozen is not None:
            raise InvalidInput(
                f"{frozen} was frozen after training began, and would move on; begin a new run with a plan of its own"
            )
        key = self._next_key()

        def run() -> Any:
            tape.calls.clear()
            with self._recording(tape), self._keyed(key):
                return self.model(*inputs, **options)

        with self.as_written():
            output = self.layouts.run(run, (inputs, options), tape.rows, tape.constants)
        changed = [name for name, version in self._versions().items() if before.get(name) != version]
        if changed:
            raise InvalidInput(
                f"the forward pass wrote into {', '.join(changed[:3])}: a layer that remembers records (running "
                "statistics, a queue) lets them out without clipping and noise. Turn that off, e.g. "
                "track_running_stats=False, or put the layer into evaluation mode"
            )
        self.runs_again, self.one_shape = lent(tape.calls), all(call.rule.one_shape for call in tape.calls)
        if self.runs_again:
            self._recomputation.expect(output, tape.rows)
        return output

    @property
    def _device(self) -> torch.device:
        return self._trainable[0].device if self._trainable else torch.device("cpu")

    def _next_key(self) -> bytes | None:
        """None in a graph that is being captured: whoever replays it keys the generators."""
        captured = self._device.type == "cuda" and torch.cuda.is_current_stream_capturing()
        return None if self.key is None or captured else self.key()

    @contextmanager
    def _keyed(self, key: bytes | None) -> Iterator[None]:
        """Torch's generators keyed; raises if they were seeded inside, which makes public what goes by row."""
        if key is None:
            yield
            return
        with keyed(key, self._device, everything=False):
            before = seeds(self._device)
            yield
            if seeds(self._device) != before:
                raise InvalidInput(
                    "the forward pass seeded torch's generator: masks and noise go by row, and rows by who was "
                    "drawn, so with numbers that somebody knows one absence would change everybody's. Take "
                    "torch.manual_seed out"
                )

    def refuse_strangers(self, output: Any) -> None:
        """Raise if a gradient would go to a tensor that the model does not hold as a parameter to be trained."""
        ours = {id(anchor) for anchor in self._anchors.values()}
        for node in nodes(leaf for leaf in leaves(output) if isinstance(leaf, Tensor)):
            leaf = getattr(node, "variable", None)  # where gradients are accumulated
            if leaf is not None and id(leaf) not in ours:
                raise InvalidInput(f"a tensor of shape {tuple(leaf.shape)} {_STRANGER}")

    def remembered(self) -> Callable[[], None]:
        """Gives what puts buffers and parameters back to what they are now: for a forward pass that is taken back."""
        values = [value for _, value in self._parameters]
        buffers = [(module, name, getattr(module, name)) for module, name, _ in self._buffers]
        held = [*values, *(buffer for _, _, buffer in buffers if buffer is not None)]
        copies = [(value, value._version, value.detach().clone()) for value in held]

        def put_back() -> None:
            for module, name, buffer in buffers:
                setattr(module, name, buffer)
            with torch.no_grad():
                for value, version, copy in copies:
                    if value._version != version:
                        value.copy_(copy)

        return put_back

    def _versions(self) -> dict[str, tuple[int, int]]:
        """Of every buffer and parameter which tensor it is, and how often that was written to."""
        found = ((name, getattr(module, local)) for module, local, name in self._buffers)
        versions = {name: (id(buffer), buffer._version) for name, buffer in found if buffer is not None}
        return versions | {name: (id(value), value._version) for name, value in self._parameters}

    def _refusing(self, value: Any) -> Any:
        floats = isinstance(value, Tensor) and value.is_floating_point()
        return NoWayBack.apply(value, self._anchor(value.device)) if floats else value  # type: ignore[no-untyped-call]

    @contextmanager
    def captured(self) -> Iterator[None]:
        """Inside, passes have nothing to do with those before: neither what is random in them nor where they end."""
        key, anchors, self.key, self._anchors = self.key, self._anchors, None, {}
        try:
            yield
        finally:
            self.key, self._anchors = key, anchors

    def _anchor(self, device: torch.device) -> Tensor:
        """Something that asks for a gradient, so that one comes back to a layer whose input asks for none."""
        if device not in self._anchors:
            self._anchors[device] = torch.zeros((), device=device, requires_grad=True)
        return self._anchors[device]


def _own(module: nn.Module, rule: Rule, names: dict[int, str]) -> dict[str, str]:
    """The trainable parameters that the rule answers for: local name → name in the model."""
    found = module.named_parameters(recurse=rule.whole_module)
    return {local: names[id(parameter)] for local, parameter in found if parameter.requires_grad}


def _run_in_parts(
    undo: ExitStack, module: nn.Module, run: Callable[..., Any], only: Callable[[], bool] = lambda: True
) -> None:
    """Until undone the layer is run so, where ``only`` says yes."""
    own = module.forward
    module.__dict__["forward"] = lambda *given, **options: (run if only() else own)(*given, **options)
    undo.callback(module.__dict__.pop, "forward", None)
