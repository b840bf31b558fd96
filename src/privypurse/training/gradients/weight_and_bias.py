"""What linear layers and convolutions share: a weight that multiplies, a bias that is added."""

from __future__ import annotations

from abc import abstractmethod

from torch import Tensor

from privypurse.training.gradients.numerics import at_least_float32, square_sum, weighted_rows
from privypurse.training.gradients.rule import Call, Rule


class ProductRule(Rule):
    """Norms and sums from the layer's input and its output's gradient, mostly without each record's gradient."""

    def settle(self, call: Call) -> None:
        """Nothing is made before it is asked for."""

    @abstractmethod
    def weight_squares(self, call: Call) -> Tensor:
        """The squared norm of every record's weight gradient; where that was made, it may be kept."""

    @abstractmethod
    def weight_sum(self, call: Call, weights: Tensor) -> Tensor:
        """The weighted sum of weight gradients that were not kept."""

    @abstractmethod
    def in_order(self, call: Call, kept: Tensor) -> Tensor:
        """One weight gradient, flat and in the order in which they are kept, as the layer's weight has it."""

    @abstractmethod
    def weight(self, call: Call) -> Tensor:
        """Every record's weight gradient."""

    @abstractmethod
    def over_tokens(self, g: Tensor) -> Tensor:
        """Output gradients (records, ...) added up over each record's tokens or places: (records, features)."""

    def bias(self, call: Call) -> Tensor:
        """Every record's bias gradient. Tokens or places are added first, in norm and sum alike: they may cancel."""
        return self.over_tokens(at_least_float32(call.output_gradient))

    def made(self, call: Call) -> dict[str, Tensor]:
        """What is kept as it is, in whatever order and however rounded: the sum is made of it, so a norm is too."""
        if not call.kept_is_measured:
            return self.per_record(call)
        full = {"weight": self.weight, "bias": self.bias}
        return {name: call.kept[name] if name in call.kept else full[name](call) for name in call.names}

    def squared_norms(self, call: Call) -> dict[str, Tensor]:
        out = {}
        if "weight" in call.names:
            out["weight"] = self.weight_squares(call)
        if "bias" in call.names:
            call.kept["bias"] = self.bias(call)
            out["bias"] = square_sum(call.kept["bias"])
        return out

    def weighted_sum(self, call: Call, weights: Tensor) -> dict[str, Tensor]:
        out, kept = {}, call.kept
        if "weight" in kept:
            out["weight"] = self.in_order(call, weighted_rows(kept.pop("weight").flatten(1), weights))
        elif "weight" in call.names:
            out["weight"] = self.weight_sum(call, weights)
        if "bias" in call.names:
            out["bias"] = weighted_rows(kept.pop("bias") if "bias" in kept else self.bias(call), weights)
        return out

    def seen(self, call: Call, a: Tensor) -> tuple[Tensor, int]:
        """The input as the weight meets it, and how often at most it meets each entry."""
        return a, 1

    def term_norms(self, call: Call) -> dict[str, Tensor]:
        """By Cauchy and Schwarz: Σ_t ‖a_t‖ ‖g_t‖ ≤ (uses · Σ‖a_t‖² · Σ‖g_t‖²)^½."""
        a, g = call.input_and_gradient()
        seen, uses = self.seen(call, a)
        a, g = square_sum(seen).sqrt(), square_sum(g).sqrt()
        found = {"weight": a * g * uses**0.5, "bias": g * self.summands(call) ** 0.5}
        return {name: found[name] for name in call.names}

    def per_record(self, call: Call) -> dict[str, Tensor]:
        full = {"weight": self.weight, "bias": self.bias}
        return {name: full[name](call) for name in call.names}
