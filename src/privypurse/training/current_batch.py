"""Between the loader and the optimizer's step: which records of the batch at hand went through the model, and how."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from privypurse.errors import InvalidInput
from privypurse.training.gradients import Tape
from privypurse.training.gradients.recomputation import refuse_around_model
from privypurse.training.graphed import Graphs, Replay
from privypurse.training.isolation.model import require_isolated, takes_one_more
from privypurse.training.isolation.tracking.operation import require_constant
from privypurse.training.isolation.tracking.record_sum import FOREIGN, over_records
from privypurse.training.isolation.tracking.states import Drawn, Places, Rows, plain, state_of
from privypurse.training.isolation.tracking.structures import handed, mixed, place_of, untracked
from privypurse.training.mechanism import PrivateRun
from privypurse.training.model_inputs import Given
from privypurse.training.physical_batches import Batch

_LATER = 1 / 500  # how likely a later batch is checked where batches are replayed: a check takes as long as ten


@dataclass
class Pass:
    """A forward pass of some records of the batch at hand."""

    places: Places
    tape: Tape | Replay
    returned: list[int] = field(default_factory=list)
    """To which of the model's outputs gradients came back."""


class CurrentBatch:
    """Which records of the batch at hand went through the model, between the loader and the optimizer's step."""

    def __init__(
        self, run: PrivateRun, loss_reduction: str, capture: bool | None = None, most: int | None = None
    ) -> None:
        """``capture`` and ``most`` are those of `Graphs`."""
        self.run, self._reduction, self._graphs = run, loss_reduction, Graphs(run, capture, most)
        self._released: dict[str, tuple[Tensor, int]] = {}
        self.restart()
        self._constants: set[torch.Size] = set()
        """Shapes of inputs that are the same for all records."""
        self._entries: set[torch.Size] = set()
        """Shapes of the entries of inputs that have one for each record, and are not from the loader."""

    def restart(self) -> None:
        """The loader begins anew; a batch that was left by ``break`` is forgotten."""
        self._batch: Batch | None = None
        self._drawn: Drawn | None = None
        self._passes: list[Pass] = []

    def hand_out(self, batch: Batch, data: Any) -> Any:
        """The batch is at hand from now on; its data, each tensor knowing whose its rows are."""
        self.require_stepped()
        if batch.first:
            self.run.clear()  # what a step that was broken off left behind belongs to no other step
        self._batch, self._drawn = batch, Drawn(batch.records.size, self._reduction, self.run.keys.next)
        return handed(data, Places(self._drawn))

    def prepare(self) -> bool:
        """A step is about to begin; False if the run ends here."""
        self.require_stepped()
        return self.run.prepare()

    def require_stepped(self) -> None:
        """Raise if the batch at hand has not been stepped on."""
        if self._batch is not None:
            raise InvalidInput(
                "a batch was left without a step of the private optimizer. Use the model and the optimizer that "
                "make_private gave back, and take a step for every batch, whatever its loss: skipping one tells what "
                "was in it. For larger steps make a plan with a larger batch_size"
            )

    def watch(self, inputs: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """A forward pass of the model on (a part of) the batch at hand."""
        refuse_around_model()
        places, others = self._places_of(inputs, options)
        inputs, options = untracked(inputs), untracked(options)
        known = len(self._constants)
        constants = self._same_for_all((inputs, options), others, places.size)
        later = _LATER if self._graphs.on else None
        due = places.size > 0 and self.run.keys.due("model" if places.size > 1 else "one record", later)
        due = due or (places.size > 1 and len(self._constants) > known)  # what is new may go by place
        if due:
            require_isolated(self.run.recorder, inputs, options, places.size, constants, followed=True)
        self.run.require_true_gradients((inputs, options), places.size, constants)
        replayed = None
        if self._replayable(places, others):
            replayed = self._graphs.forward((inputs, options), places.size, self._batch.first)  # type: ignore[union-attr]
        if replayed is None:
            drawn = places.drawn
            tape = Tape(places.size, open=lambda: drawn.crossed, constants=constants)
            output = self.run.recorder.forward(tape, *inputs, **options)
            this = Pass(places, tape)
        else:
            this, output = Pass(places, replayed[0]), replayed[1]
        if due and replayed is not None:
            self._graphs.require_same(output, (inputs, options))
        elif due:
            self.run.recorder.refuse_strangers(output)
        self._passes.append(this)
        return handed(output, places, this.returned)

    def _replayable(self, places: Places, others: list[Tensor]) -> bool:
        """Whether a pass is that of a whole batch with one record for each unit, and of nothing else."""
        batch = self._batch
        return batch is not None and batch.one_each and places.whole and not self._passes and not others

    def _places_of(self, inputs: tuple[Any, ...], options: dict[str, Any]) -> tuple[Places, list[Tensor]]:
        """Whose rows the inputs are, and those inputs that are the same for all records.

        Raises unless they are of the batch at hand, and for the first time.
        """
        places, others = place_of((inputs, options))
        if places is None or self._drawn is None or places.drawn is not self._drawn:
            raise InvalidInput(
                "the model was run in training mode on a batch that is not from the private loader, or not the one "
                "at hand: give it tensors of the loader's batch, or what torch makes of them (values that went "
                "through NumPy, lists or other tensors are not followed). To measure it, call model.eval() first"
            )
        if any(value.requires_grad for value in others):
            raise InvalidInput(FOREIGN)
        return places, others

    def _same_for_all(self, given: Given, others: list[Tensor], records: int) -> frozenset[int]:
        """The ids of inputs, not from the loader, that have no entry for each record; raises if such entries differ.

        A shape that was met beside another number of records does not count them, nor does one beside which the model
        takes one record more: a mask (tokens, tokens) may have as many rows as there are records by chance.
        """
        self._constants |= {each.shape for each in others if each.shape[:1] != (records,) or records < 2}
        unknown = {each.shape for each in others if each.stride()[:1] != (0,)} - self._constants
        unknown = {shape for shape in unknown if shape[1:] not in self._entries}
        alone = [{shape} for shape in unknown] if len(unknown) > 1 else []
        for some in (unknown, *alone):
            constants = {id(each) for each in others if each.shape in self._constants | some}
            if some - self._constants and takes_one_more(self.run.recorder, given, records, frozenset(constants)):
                self._constants |= some
        self._entries |= {shape[1:] for shape in unknown - self._constants}
        for each in others:
            if each.shape not in self._constants:
                require_constant("the model", each, 0)
        return frozenset(id(each) for each in others if each.shape in self._constants)

    def evaluate(self, model: Callable[..., Any], inputs: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """The model itself, on whatever it is given; records of the loader stay known."""
        output = model(*untracked(inputs), **untracked(options))
        try:
            places, _ = place_of((inputs, options))
        except InvalidInput:
            return mixed(output, "the model")
        return output if places is None else handed(output, places)

    def backward(self, losses: Tensor) -> None:
        """The backward pass of one loss for each record that went through the model."""
        torch.autograd.backward(self.total(losses))

    def total(self, losses: Tensor) -> Tensor:
        """Where that backward pass begins."""
        state = state_of(losses)
        passed = [each.places for each in self._passes]
        if not (isinstance(state, Rows) and losses.dim() == 1 and any(map(state.places.same, passed))):
            if not passed:
                raise InvalidInput(
                    "no record of this batch went through the model in training mode. Call model.train() before the "
                    "loop, and after measuring: from_pretrained gives models in evaluation mode, in which nothing is "
                    "trained"
                )
            raise InvalidInput(
                "there has to be one loss for each record that went through the model, in their order, made of the "
                "model's output and the loader's labels: reduction=\"none\", then the mean or sum over everything "
                f"but the first dimension; this tensor has {losses.dim()} dimensions. Of a Hugging Face model leave "
                "labels= out, and take pp.losses.for_model(model)"
            )
        total: Tensor = over_records(plain(losses), state.places, self._reduction).value
        return total

    def forget(self) -> None:
        """Gradients that came back since the last step do not count (zero_grad)."""
        self._passes = [each for each in self._passes if not each.tape.finished()]

    @property
    def begins_step(self) -> bool:
        """Whether the batch at hand is the first of its step."""
        return self._batch is not None and self._batch.first

    @property
    def is_step(self) -> bool:
        """Whether the batch at hand is all of its step."""
        return self.begins_step and self._batch.last  # type: ignore[union-attr]

    def clip(self) -> bool:
        """Add the clipped gradients of the batch at hand to the step's sum; True if the step is complete."""
        self.run.require_step()
        batch, passes = self._batch, [each for each in self._passes if each.tape.finished()]
        if batch is None or not passes:
            raise InvalidInput(
                "optimizer.step() needs a batch of the private loader and a loss.backward() before it, with the "
                "model in training mode: model.train()"
            )
        self._require_once(passes)
        self._require_nothing_else()
        self.restart()
        if batch.units.size:
            self._add(batch, passes)
        return batch.last

    @staticmethod
    def _require_once(passes: list[Pass]) -> None:
        """Raise unless every record of the batch went through the model once, and its loss came back."""
        if not all(each.returned for each in passes):
            raise InvalidInput("a gradient came back to the model past its output; use what the model gives alone")
        whole = len(passes) == 1 and passes[0].places.whole
        if not whole and not np.all(sum(each.places.counts() for each in passes) == 1):
            raise InvalidInput(
                "some records of the batch went through the model twice or not at all, and each has to go through "
                "once; run each batch of the loader through the model once, whole or in parts"
            )

    def note_gradients(self) -> None:
        """What is in the parameters' gradients now is known, and nothing to complain about."""
        gradients = {name: parameter.grad for name, parameter in self.run.parameters.items()}
        self._released = {name: (grad, grad._version) for name, grad in gradients.items() if grad is not None}

    def _require_nothing_else(self) -> None:
        """Raise if something besides this class wrote a gradient: it would be lost, or was never private."""
        for name, parameter in self.run.parameters.items():
            ours, version = self._released.get(name, (None, 0))
            if parameter.grad is not None and (parameter.grad is not ours or parameter.grad._version != version):
                raise InvalidInput(
                    f"{name}.grad was written by something else than the private step: a penalty on parameters in "
                    "the loss (use the optimizer's weight_decay), clip_grad_norm_ (clipping is done here), or a "
                    "backward pass through the model inside of the private one"
                )

    def _add(self, batch: Batch, passes: list[Pass]) -> None:
        if not batch.one_each and not (len(passes) == 1 and passes[0].places.whole):
            raise InvalidInput(
                "a batch with several records of one person must go through the model whole and in the loader's "
                "order, not in parts"
            )
        units, owner = batch.places(self.run.setup)
        for each in (each for each in passes if each.places.size):
            some = ... if each.places.whole else torch.as_tensor(each.places.rows(), device=units.device)
            if isinstance(each.tape, Replay):
                each.tape.add(units)
            else:
                self._graphs.learn(each.returned)
                self.run.add(each.tape, units[some], owner)
