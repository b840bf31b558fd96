"""The methods that turn budgets into a plan, by name, each with its usual settings."""

from privypurse.assignment.curve_fit import CurveFit
from privypurse.assignment.exclude import Exclude
from privypurse.assignment.method import Method
from privypurse.assignment.sample import Sample
from privypurse.assignment.scale import Scale
from privypurse.assignment.uniform import Uniform

METHODS: dict[str, Method] = {method.name: method for method in (Uniform(), Sample(), Scale(), CurveFit(), Exclude())}
