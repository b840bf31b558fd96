"""Data sets: real files where they are there, and clear errors where they are absent or altered."""

import gzip
import hashlib
import subprocess
import sys

import numpy as np
import pytest
import scipy.io

import privypurse as pp
from components import require
from privypurse import datasets
from privypurse.datasets import census


@pytest.fixture
def empty_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("PRIVYPURSE_DATA", str(tmp_path))
    return tmp_path


@pytest.mark.needs("data/MNIST", "data/FashionMNIST")
@pytest.mark.parametrize("name", ["MNIST", "FashionMNIST"])
def test_the_canonical_files_are_read(name: str) -> None:
    images = datasets.mnist(name)
    assert images.train_images.shape == (60_000, 28, 28)
    assert images.test_images.shape == (10_000, 28, 28)
    assert images.train_images.dtype == np.uint8
    # Both have ten classes; Fashion-MNIST has exactly 6,000 of each, MNIST 5,421 (fives) to 6,742 (ones).
    counts = np.bincount(images.train_labels)
    expected = (6_000, 6_000) if name == "FashionMNIST" else (5_421, 6_742)
    assert (counts.min(), counts.max()) == expected


def test_absent_or_altered_files_are_named(empty_folder) -> None:
    with pytest.raises(pp.InvalidInput, match=r"train-images.*PRIVYPURSE_DATA"):
        datasets.mnist()
    folder = empty_folder / "MNIST" / "raw"
    folder.mkdir(parents=True)
    path = folder / "train-images-idx3-ubyte.gz"
    path.write_bytes(gzip.compress(b"not images"))
    with pytest.raises(pp.InvalidInput, match="checksum"):
        datasets.mnist()
    for broken in (b"no archive", gzip.compress(b"cut short")[:-6]):
        path.write_bytes(broken)
        with pytest.raises(pp.InvalidInput, match=r"train-images.*get it anew"):
            datasets.mnist()
    with pytest.raises(pp.InvalidInput, match="'KMNIST'"):
        datasets.mnist("KMNIST")


# ------------------------------------------------------------------------------------------------------ CIFAR-10


@pytest.mark.slow
@pytest.mark.needs("data/cifar10", "images")
def test_cifar10_is_what_everybody_trains_on() -> None:
    images = datasets.cifar10()
    assert images.train_images.shape == (50_000, 32, 32, 3)
    assert images.test_images.shape == (10_000, 32, 32, 3)
    assert images.train_images.dtype == images.train_labels.dtype == np.uint8
    assert np.bincount(images.train_labels).tolist() == [5_000] * 10
    assert np.bincount(images.test_labels).tolist() == [1_000] * 10
    # The channel means and deviations by which the literature normalises these images.
    values = np.arange(256) / 255
    for channel, mean, deviation in ((0, 0.4914, 0.2470), (1, 0.4822, 0.2435), (2, 0.4465, 0.2616)):
        shares = np.bincount(images.train_images[..., channel].ravel(), minlength=256) / (50_000 * 32 * 32)
        assert shares @ values == pytest.approx(mean, abs=5e-5)
        assert np.sqrt(shares @ (values - shares @ values) ** 2) == pytest.approx(deviation, abs=5e-5)
    # Cut rightly, neighbouring pixels are alike; a sheet cut wrongly has seams inside its images.
    step = np.abs(np.diff(images.train_images[:2_000].astype(float), axis=2)).mean((0, 1, 3))
    assert step.max() < 1.3 * step.mean()


def test_cifar10_absent_or_altered(empty_folder) -> None:
    with pytest.raises(pp.InvalidInput, match=r"train_1.webp is not there.*labels.npz.*PRIVYPURSE_DATA"):
        datasets.cifar10()
    require("images")
    from PIL import Image

    folder = empty_folder / "cifar10"
    folder.mkdir()
    path = folder / "train_1.webp"
    path.write_bytes(b"no image")
    with pytest.raises(pp.InvalidInput, match=r"train_1.webp cannot be read as an image.*get it anew"):
        datasets.cifar10()
    Image.new("RGB", (32, 32)).save(path, lossless=True)
    with pytest.raises(pp.InvalidInput, match=r"no sheet.*\(32, 32, 3\)"):
        datasets.cifar10()
    Image.new("RGB", (3200, 3200)).save(path, lossless=True)
    with pytest.raises(pp.InvalidInput, match="checksum differs"):
        datasets.cifar10()


def test_without_pillow_the_extra_is_named(empty_folder, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    (empty_folder / "cifar10").mkdir()
    (empty_folder / "cifar10" / "train_1.webp").write_bytes(b"")
    with pytest.raises(pp.InvalidInput, match=r"pip install '.\[images\]' in a clone"):
        datasets.cifar10()


# ---------------------------------------------------------------------------------------------------------- SVHN


@pytest.fixture
def house_numbers(empty_folder):
    """Small files in SVHN's layout, with what should be read from them and their checksums."""
    folder = empty_folder / "svhn"
    folder.mkdir()
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (7, 32, 32, 3), dtype=np.uint8)
    labels = np.array([1, 2, 9, 10, 10, 5, 3], dtype=np.uint8)
    md5 = {}
    for name, some in (("train_32x32.mat", slice(0, 4)), ("test_32x32.mat", slice(4, 7))):
        stacked = np.stack(list(images[some]), axis=-1)
        scipy.io.savemat(folder / name, {"X": stacked, "y": labels[some, None]}, do_compression=True)
        md5[name] = hashlib.md5((folder / name).read_bytes()).hexdigest()
    return images, labels, md5


def test_svhn_is_read_image_by_image(house_numbers) -> None:
    images, _, md5 = house_numbers
    read = datasets.svhn(md5)
    assert np.array_equal(read.train_images, images[:4])
    assert np.array_equal(read.test_images, images[4:])
    assert read.train_labels.tolist() == [1, 2, 9, 0]
    assert read.test_labels.tolist() == [0, 5, 3]
    assert read.train_labels.dtype == np.uint8


def test_svhn_accepts_the_published_files_only(house_numbers, empty_folder) -> None:
    with pytest.raises(pp.InvalidInput, match=r"train_32x32.mat.*SVHN.*checksum differs"):
        datasets.svhn()
    (empty_folder / "svhn" / "test_32x32.mat").unlink()
    with pytest.raises(pp.InvalidInput, match=r"test_32x32.mat is not there.*PRIVYPURSE_DATA"):
        datasets.svhn(house_numbers[2])


@pytest.mark.slow
@pytest.mark.needs("data/svhn", "images")
def test_rebuilt_svhn_has_the_published_order_and_counts() -> None:
    images = datasets.svhn_rebuilt()
    assert images.train_images.shape == (73_257, 32, 32, 3)
    assert images.test_images.shape == (26_032, 32, 32, 3)
    # Class counts as Netzer et al. (2011) published them, digit 0 first.
    train = [4948, 13861, 10585, 8497, 7458, 6882, 5727, 5595, 5045, 4659]
    test = [1744, 5099, 4149, 2882, 2523, 2384, 1977, 2019, 1660, 1595]
    assert np.bincount(images.train_labels).tolist() == train
    assert np.bincount(images.test_labels).tolist() == test
    # The mean and deviation by which the literature normalises the published crops.
    some = images.train_images[::7] / 255
    assert some.mean() == pytest.approx(0.4514, abs=0.01)
    assert some.std() == pytest.approx(0.1987, abs=0.01)
    # Cut rightly, neighbouring pixels are alike; a sheet cut wrongly has seams inside its images.
    step = np.abs(np.diff(images.train_images[-2_000:].astype(float), axis=2)).mean((0, 1, 3))
    assert step.max() < 1.3 * step.mean()


def test_rebuilt_svhn_absent_or_altered(empty_folder) -> None:
    with pytest.raises(pp.InvalidInput, match=r"train_1.webp is not there.*train_8.webp.*PRIVYPURSE_DATA"):
        datasets.svhn_rebuilt()
    require("images")
    from PIL import Image

    (empty_folder / "svhn").mkdir()
    Image.new("RGB", (3200, 3200)).save(empty_folder / "svhn" / "train_1.webp", lossless=True)
    with pytest.raises(pp.InvalidInput, match="not the canonical file of SVHN, rebuilt: its checksum differs"):
        datasets.svhn_rebuilt()


# ------------------------------------------------------------------------------------------------- Heart Disease


@pytest.mark.needs("data/heart_disease")
def test_heart_disease_has_the_patients_of_its_description() -> None:
    hospitals = datasets.heart_disease()
    # heart-disease.names prints these: how many patients have num = 0, 1, 2, 3, 4.
    diagnoses = {
        "cleveland": [164, 55, 36, 35, 13],
        "hungarian": [188, 37, 26, 28, 15],
        "switzerland": [8, 48, 32, 30, 5],
        "va": [51, 56, 41, 42, 10],
    }
    complete = {"cleveland": 303, "hungarian": 261, "switzerland": 46, "va": 130}
    assert list(hospitals) == list(diagnoses)
    for name, hospital in hospitals.items():
        assert hospital.labels.size == sum(diagnoses[name])
        assert hospital.labels.sum() == sum(diagnoses[name][1:])
        assert hospital.complete().sum() == complete[name]
        assert len(hospital.columns) == 14
        assert not np.isnan(hospital.columns["age"]).any()
        assert set(hospital.columns["sex"]) <= {0.0, 1.0}
    # Cleveland lacks four ca and two thal, so 297 of its patients are complete in every column.
    assert hospitals["cleveland"].complete(without=()).sum() == 297


@pytest.mark.needs("data/heart_disease")
def test_a_changed_patient_is_noticed(empty_folder, monkeypatch) -> None:
    monkeypatch.undo()
    original = datasets.folder() / "heart_disease"
    monkeypatch.setenv("PRIVYPURSE_DATA", str(empty_folder))
    copy = empty_folder / "heart_disease"
    copy.mkdir()
    for path in original.glob("*.data"):
        (copy / path.name).write_bytes(path.read_bytes())
    assert len(datasets.heart_disease()) == 4
    raw = (copy / "processed.va.data").read_bytes()
    (copy / "processed.va.data").write_bytes(raw.replace(b"63,", b"64,", 1))
    with pytest.raises(pp.InvalidInput, match=r"processed.va.data.*checksum differs"):
        datasets.heart_disease()


def test_heart_disease_absent(empty_folder) -> None:
    with pytest.raises(pp.InvalidInput, match=r"processed.cleveland.data is not there.*PRIVYPURSE_DATA"):
        datasets.heart_disease()


# --------------------------------------------------------------------------------------------------------- Adult


ADULT_COLUMNS = [
    *("age", "workclass", "fnlwgt", "education", "education_num", "marital_status", "occupation", "relationship"),
    *("race", "sex", "capital_gain", "capital_loss", "hours_per_week", "native_country", "income"),
]


def test_the_adult_census_is_whole():
    adult = datasets.adult()
    assert adult.people == 48_842
    assert {column.size for column in adult.columns.values()} == {48_842}
    assert (adult.train, adult.test) == (slice(0, 32_561), slice(32_561, 48_842))
    assert list(adult.columns) == ADULT_COLUMNS
    # As documented with the data: 24,720 + 7,841 people in the training part, 12,435 + 3,846 in the test part.
    income = adult.columns["income"]
    assert set(income) == {"<=50K", ">50K"}
    assert ((income[adult.train] == ">50K").sum(), (income[adult.test] == ">50K").sum()) == (7_841, 3_846)
    numbers = ("age", "fnlwgt", "education_num", "capital_gain", "capital_loss", "hours_per_week")
    assert {name for name, column in adult.columns.items() if column.dtype.kind == "i"} == set(numbers)
    first = {name: column[0] for name, column in adult.columns.items()}
    assert (first["age"], first["workclass"], first["education"]) == (39, "State-gov", "Bachelors")
    assert (adult.columns["workclass"] == "?").sum() > 0


def test_damaged_census_data_is_refused(monkeypatch):
    monkeypatch.setattr(census, "_SHA256", "0" * 64)
    with pytest.raises(pp.InvalidInput, match="damaged; install privypurse again"):
        datasets.adult()


def test_the_features_of_a_person_by_hand() -> None:
    """The first person of the file, written out: 39, State-gov, …, 2,174 dollars of capital gain, 40 hours."""
    adult = datasets.adult()
    features = adult.features()
    assert features.dtype == np.float32
    assert features.shape == (48_842, 5 + 9 + 7 + 15 + 6 + 5 + 2 + 42)
    age, schooling, hours, gain, loss = features[0, :5]
    assert age == pytest.approx((39 - 17) / (90 - 17) * 2 - 1)
    assert schooling == pytest.approx((13 - 1) / 15 * 2 - 1)
    assert hours == pytest.approx((40 - 1) / 98 * 2 - 1)
    assert gain == pytest.approx(np.log(2175) / np.log(100_001))
    assert loss == 0.0
    # State-gov, Never-married, Adm-clerical, Not-in-family, White, Male, United-States.
    ones = np.flatnonzero(features[0, 5:]).tolist()
    assert ones == [5, 9 + 2, 16 + 8, 31 + 3, 37 + 0, 42 + 1, 44 + 0]


def test_features_stay_in_their_ranges_and_each_person_has_one_of_each_category() -> None:
    adult = datasets.adult()
    features = adult.features()
    assert np.abs(features).max() <= 1.0
    assert (features[:, 5:].sum(1) == 7).all()
    # As documented with the data: 24.78 % without unknowns, 23.93 % of everybody.
    assert round(100 * float(adult.labels().mean()), 2) == 23.93
    unknown = (features[:, [5 + 8, 5 + 9 + 7 + 14, -1]] == 1).any(1)
    assert (48_842 - unknown.sum(), round(100 * float(adult.labels()[~unknown].mean()), 2)) == (45_222, 24.78)


def test_what_is_made_of_a_person_depends_on_nobody_else() -> None:
    """Rule 12. Scaling by the rows at hand, shown beside it, fails the same check."""
    adult = datasets.adult()
    some = np.array([5, 7_000, 40_000])
    alone = datasets.Adult({name: column[some] for name, column in adult.columns.items()})
    assert np.array_equal(adult.features()[some], alone.features())
    age = adult.columns["age"].astype(float)
    assert not np.allclose(((age - age.mean()) / age.std())[some], (age[some] - age[some].mean()) / age[some].std())


@pytest.mark.slow
def test_reading_data_sets_loads_neither_torch_nor_pillow() -> None:
    code = "import sys, privypurse.datasets as d; d.adult().features(); print({'torch', 'PIL'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=900, check=True)
    assert done.stdout.strip() == "set()"
