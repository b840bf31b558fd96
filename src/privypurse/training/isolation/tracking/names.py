"""The names of torch's functions by what they do to records."""

from __future__ import annotations


def words(text: str) -> frozenset[str]:
    return frozenset(text.split())


READ = words("""
    size dim ndimension numel nelement stride item tolist numpy is_floating_point is_complex is_contiguous
    get_device element_size data_ptr storage_offset is_same_size is_nonzero is_set_to equal allclose dim_order
    is_signed is_inference result_type can_cast has_names __len__ __array__ __float__ __int__ __bool__
    __index__ __complex__ __hash__ __contains__ __dir__ is_shared is_pinned __dlpack__ __dlpack_device__
    untyped_storage _is_view is_neg is_conj
""")
"""What a Python number, a shape or an array is read from: nothing that is followed from there."""

SHOWN = words("__repr__ __str__ __format__")
ATTRIBUTES = words("data T mT H mH real imag")
"""Attributes that are tensors of the same records; others are read."""
CONSTANT = words("new_zeros new_ones new_full new_empty")

RANDOM = words("""
    rand_like randn_like randint_like bernoulli dropout dropout1d dropout2d dropout3d alpha_dropout normal
    uniform random exponential gumbel_softmax
""")
"""Drawn for each record: from the run's own source, not from a generator whose seed may be public."""

ELEMENTWISE = words("""
    add sub subtract mul multiply div divide true_divide floor_divide remainder fmod pow float_power neg
    negative positive abs absolute sign sgn exp exp2 expm1 log log2 log10 log1p sqrt rsqrt square reciprocal
    sigmoid tanh relu relu6 gelu silu mish elu selu celu leaky_relu softplus softsign hardtanh hardsigmoid
    hardswish logsigmoid tanhshrink threshold hardshrink softshrink logit erf erfc erfinv lgamma digamma sin
    cos tan asin acos atan atan2 arctan2 sinh cosh asinh acosh atanh clamp clip clamp_min clamp_max maximum
    minimum fmax fmin eq ne lt le gt ge not_equal less less_equal greater greater_equal logical_and logical_or
    logical_not logical_xor bitwise_and bitwise_or bitwise_xor bitwise_not isnan isinf isfinite isclose
    nan_to_num round floor ceil trunc frac lerp addcmul addcdiv xlogy logaddexp logaddexp2 hypot masked_fill
    sinc heaviside copysign i0 special_expit special_logit special_xlogy special_xlog1py special_erf
    special_entr log_sigmoid zeros_like ones_like full_like empty_like rand_like randn_like randint_like
    bernoulli dropout alpha_dropout clone contiguous detach data zero fill copy normal uniform random
    exponential broadcast_tensors deg2rad rad2deg real
""")
CASTS = words("to type float double half bfloat16 long int short bool byte char cpu cuda type_as pin_memory")
REDUCED = words("""
    nansum nanmean prod logsumexp amax amin max min argmax argmin all any std var median nanmedian
    count_nonzero special_logsumexp
""")
ALONG = words(
    "softmax log_softmax softmin cumsum cumprod logcumsumexp cummax cummin flip special_softmax special_log_softmax"
)
GATHERED = words("gather take_along_dim scatter scatter_add scatter_reduce")
REGROUPED = words("view reshape flatten unflatten ravel view_as reshape_as")
PERMUTED = words("transpose permute movedim moveaxis swapaxes swapdims t adjoint T mT H mH")
EXPANDED = words("expand expand_as broadcast_to repeat tile")
LAYERS = words("""
    conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d max_pool1d max_pool2d max_pool3d
    avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d
    adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d group_norm
""")
LINEAR = words("""
    neg positive add sub subtract mul multiply div divide true_divide sum mean reshape view squeeze unsqueeze
    flatten __getitem__ select unbind stack cat clone contiguous to float double half bfloat16 type type_as
    cpu cuda expand
""")
"""What may be done to a total."""
ADDS = words("add sub subtract stack cat")
DIVIDES = words("div divide true_divide")

OTHER_NAMES = {
    "__rsub__": "sub",
    "__rdiv__": "div",
    "__rtruediv__": "div",
    "__rpow__": "pow",
    "__pow__": "pow",
    "__rfloordiv__": "floor_divide",
    "__rmod__": "remainder",
    "__rmatmul__": "matmul",
    "__matmul__": "matmul",
    "__eq__": "eq",
    "__ne__": "ne",
    "__and__": "bitwise_and",
    "__or__": "bitwise_or",
    "__xor__": "bitwise_xor",
    "__rand__": "bitwise_and",
    "__ror__": "bitwise_or",
    "__rxor__": "bitwise_xor",
    "__invert__": "bitwise_not",
    "__iand__": "bitwise_and",
    "__ior__": "bitwise_or",
    "__ixor__": "bitwise_xor",
}
IN_PLACE = words("__iand__ __ior__ __ixor__")
