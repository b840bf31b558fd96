"""Data sets: the one that ships with the package, and those in a folder of the user's, checked before use."""

from privypurse.datasets.census import Adult, adult
from privypurse.datasets.encoder import Encoder
from privypurse.datasets.encoding import Categories, Dates, Flag, Range
from privypurse.datasets.folders import folder
from privypurse.datasets.hospitals import Hospital, heart_disease
from privypurse.datasets.images import Images, channels_first, cifar10, mnist, svhn, svhn_rebuilt

__all__ = [
    "Adult",
    "Categories",
    "Dates",
    "Encoder",
    "Flag",
    "Hospital",
    "Images",
    "Range",
    "adult",
    "channels_first",
    "cifar10",
    "folder",
    "heart_disease",
    "mnist",
    "svhn",
    "svhn_rebuilt",
]
