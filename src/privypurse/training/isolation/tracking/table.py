"""The names of torch's functions by what they do to records, and the rule of each kind.

What stands nowhere here is refused where a gradient would go through it, so that a forgotten name is safe.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from privypurse.training.isolation.tracking import elementwise, indexing, products, shapes
from privypurse.training.isolation.tracking.elementwise import kept_unless
from privypurse.training.isolation.tracking.operation import Propagation


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


READ = _words("""
    size dim ndimension numel nelement stride item tolist numpy is_floating_point is_complex is_contiguous
    get_device element_size data_ptr storage_offset is_same_size is_nonzero is_set_to equal allclose dim_order
    is_signed is_inference result_type can_cast has_names __len__ __array__ __float__ __int__ __bool__ __index__
    __complex__ __hash__ __contains__ __dir__ is_shared is_pinned __dlpack__ __dlpack_device__ untyped_storage
    _is_view is_neg is_conj
""")
"""What a Python number, a shape or an array is read from: nothing that is followed from there."""

COPIED = _words("__repr__ __str__ __format__ __deepcopy__")
"""What is made of the values alone, and stays what it is."""

ATTRIBUTES = _words("data T mT H mH real imag")
"""Attributes that are tensors of the same records; others are read."""

CONSTANT = _words("new_zeros new_ones new_full new_empty")

RANDOM = _words("""
    rand_like randn_like randint_like bernoulli dropout dropout1d dropout2d dropout3d alpha_dropout normal uniform
    random exponential gumbel_softmax
""")
"""Drawn for each record: from the run's own source, not from a generator whose seed may be public."""

LINEAR = _words("""
    neg positive add sub subtract mul multiply div divide true_divide sum mean reshape view squeeze unsqueeze
    flatten __getitem__ select unbind stack cat clone contiguous to float double half bfloat16 type type_as cpu cuda
    expand
""")
"""What may be done to a total."""

ADDS = _words("add sub subtract stack cat")
DIVIDES = _words("div divide true_divide")

_KINDS: dict[Propagation, str] = {
    elementwise.elementwise: """
        add sub subtract mul multiply div divide true_divide floor_divide remainder fmod pow float_power neg
        negative positive abs absolute sign sgn exp exp2 expm1 log log2 log10 log1p sqrt rsqrt square reciprocal
        sigmoid tanh relu relu6 gelu silu mish elu selu celu leaky_relu softplus softsign hardtanh hardsigmoid
        hardswish logsigmoid tanhshrink threshold hardshrink softshrink logit erf erfc erfinv lgamma digamma sin cos
        tan asin acos atan atan2 arctan2 sinh cosh asinh acosh atanh clamp clip clamp_min clamp_max maximum minimum
        fmax fmin eq ne lt le gt ge not_equal less less_equal greater greater_equal logical_and logical_or
        logical_not logical_xor bitwise_and bitwise_or bitwise_xor bitwise_not isnan isinf isfinite isclose
        nan_to_num round floor ceil trunc frac lerp addcmul addcdiv xlogy logaddexp logaddexp2 hypot masked_fill
        sinc heaviside copysign i0 special_expit special_logit special_xlogy special_xlog1py special_erf
        special_entr log_sigmoid zeros_like ones_like full_like empty_like rand_like randn_like randint_like
        bernoulli dropout alpha_dropout clone contiguous detach data zero fill copy normal uniform random
        exponential broadcast_tensors deg2rad rad2deg real
    """,
    elementwise.where: "where",
    elementwise.cast: """
        to type float double half bfloat16 long int short bool byte char cpu cuda type_as pin_memory
    """,
    partial(elementwise.reduced, kind="sum"): "sum",
    partial(elementwise.reduced, kind="mean"): "mean",
    elementwise.reduced: """
        nansum nanmean prod logsumexp amax amin max min argmax argmin all any std var median nanmedian count_nonzero
        special_logsumexp
    """,
    partial(elementwise.reduced, position=2): "norm linalg_norm linalg_vector_norm",
    partial(elementwise.reduced, default=-1): "mode",
    partial(elementwise.reduced, position=2, default=-1): "kthvalue",
    elementwise.along: """
        softmax log_softmax softmin cumsum cumprod logcumsumexp cummax cummin flip special_softmax
        special_log_softmax
    """,
    partial(elementwise.along, default=-1): "sort argsort glu",
    partial(elementwise.along, position=4, default=-1): "gumbel_softmax",
    partial(elementwise.along, position=2, default=-1): "topk diff",
    partial(elementwise.along, position=2, default=1): "normalize",
    partial(elementwise.along, position=2): "roll",
    partial(elementwise.compared, position=2, default=1): "cosine_similarity",
    partial(elementwise.compared, position=9, default=-1): "pairwise_distance",
    elementwise.gathered: "gather take_along_dim scatter scatter_add scatter_reduce",
    kept_unless(lambda op, value, dim: dim == value.dim() - 1, "adds up over records"): "linear",
    kept_unless(
        lambda op, value, dim: op.argument(3, "max_norm") is not None, "rewrites the table where records look it up"
    ): "embedding",
    kept_unless(
        lambda op, value, dim: dim >= value.dim() - len(op.argument(1, "normalized_shape")), "goes over records"
    ): "layer_norm",
    kept_unless(elementwise.uses_batch, "goes over records"): "batch_norm",
    kept_unless(
        lambda op, value, dim: len(op.argument(1, "pad")) // 2 >= value.dim() - dim,
        "puts rows that are not the loader's between records",
    ): "pad",
    kept_unless(
        lambda op, value, dim: op.argument(1, "num_classes", default=-1) < 0,
        "without num_classes counts the classes in the batch",
    ): "one_hot",
    kept_unless(elementwise.not_images, "takes records first, then channels"): """
        conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d max_pool1d max_pool2d max_pool3d
        avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d
        adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d group_norm
    """,
    products.multiplied: "matmul mm bmm mv",
    products.einsum: "einsum",
    products.attention: "scaled_dot_product_attention",
    products.attention_of_heads: "multi_head_attention_forward",
    products.recurrent: "lstm gru rnn_tanh rnn_relu",
    shapes.regrouped: "view reshape flatten unflatten ravel view_as reshape_as",
    shapes.moved: """
        transpose permute movedim moveaxis swapaxes swapdims t adjoint T mT H mH unsqueeze select unbind
    """,
    shapes.squeezed: "squeeze",
    shapes.expanded: "expand expand_as broadcast_to repeat tile",
    shapes.interleaved: "repeat_interleave",
    shapes.joined: "cat concat concatenate",
    shapes.stacked: "stack",
    indexing.indexed: "__getitem__",
    indexing.index_selected: "index_select",
    indexing.narrowed: "narrow",
    indexing.in_pieces: "split chunk tensor_split split_with_sizes",
}

PROPAGATIONS: dict[str, Propagation] = {name: rule for rule, names in _KINDS.items() for name in names.split()}

_OPERATORS = {
    "bitwise_and": "__and__ __rand__ __iand__",
    "bitwise_not": "__invert__",
    "bitwise_or": "__or__ __ror__ __ior__",
    "bitwise_xor": "__xor__ __rxor__ __ixor__",
    "div": "__rdiv__ __rtruediv__",
    "eq": "__eq__",
    "floor_divide": "__rfloordiv__",
    "matmul": "__matmul__ __rmatmul__",
    "ne": "__ne__",
    "pow": "__pow__ __rpow__",
    "remainder": "__rmod__",
    "sub": "__rsub__",
}
_NAMES = {operator: name for name, operators in _OPERATORS.items() for operator in operators.split()}


def named(func: Callable[..., Any]) -> tuple[str, bool]:
    """What a function is called here (``add`` for ``+``, ``add_``), and whether it writes into its first operand."""
    name = func.__name__
    if name == "__get__":
        attribute = str(func.__self__.__name__)  # type: ignore[attr-defined]
        return (attribute if attribute in ATTRIBUTES else "size"), False
    if name in _NAMES:
        return _NAMES[name], name.startswith("__i") and name != "__invert__"
    if name in READ:
        return name, False
    if name == "__setitem__":
        return name, True
    if name.startswith("__i") and name.endswith("__"):
        return name[3:-2], True
    if name.endswith("_") and not name.endswith("__"):
        return name[:-1], True
    return name, False
