"""scikit-learn's way to a private model: `fit`, `predict`, pipelines and searches, with everybody's own ε.

Only `PublicEncoder`, and steps that learn nothing from data, may stand before a private estimator in a pipeline. Any
other step that was fitted on the same people (StandardScaler, SelectKBest, PCA) tells about them what nobody paid
for, and voids the promise.
"""

try:
    import sklearn  # noqa: F401
    import torch  # noqa: F401
except ModuleNotFoundError as error:
    raise ImportError(f"privypurse.sklearn needs {error.name}: pip install '.[sklearn]' in a clone") from error

from privypurse.sklearn.estimators import PrivateClassifier, PrivateRegressor
from privypurse.sklearn.public_encoder import PublicEncoder
from privypurse.sklearn.said import FittedStep, LabelsNotPrivate, SpentBefore

__all__ = ["FittedStep", "LabelsNotPrivate", "PrivateClassifier", "PrivateRegressor", "PublicEncoder", "SpentBefore"]
