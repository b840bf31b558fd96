"""Flower with TLS and SuperNode authentication: strangers are refused, and late or repeated answers do no harm."""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives import serialization as form
from cryptography.hazmat.primitives.asymmetric import ec
from flower_network import CEILING, Network, network_in

pytestmark = [pytest.mark.flower, pytest.mark.needs("flower")]
ROUNDS, STEPS = 2, 5

# Flower itself repeats nothing, so the app's server does: whoever answered the round before is asked a second time.
# Its rounds end when everybody has answered, or at a sign of the test's: a clock would race the machine.
TWICE = """

import time
from pathlib import Path

from flwr.app import Message


class UntilTheSign:
    sign = Path("{sign}")

    def __init__(self, grid):
        self.grid = grid

    def __getattr__(self, name):
        return getattr(self.grid, name)

    def send_and_receive(self, messages, *, timeout=None):
        silent, replies, enough = set(self.grid.push_messages(messages)), [], False
        while silent and not enough:
            time.sleep(0.2)
            enough = self.sign.exists()  # before the last look, so that what was there at the sign is in
            came = list(self.grid.pull_messages(silent))
            silent -= {{reply.metadata.reply_to_message_id for reply in came}}
            replies += came
        self.sign.unlink(missing_ok=True)
        return replies


class Twice(flower.PersonalisedAverage):
    def start(self, grid, *rest, **options):
        return super().start(UntilTheSign(grid), *rest, **options)

    def configure_train(self, number, *rest):
        once = list(super().configure_train(number, *rest))
        answered = self.history[-1].used if self.history else ()
        again = [sent for sent in once if sent.metadata.dst_node_id in answered]
        return once + [Message(sent.content, sent.metadata.dst_node_id, sent.metadata.message_type) for sent in again]
"""


SIGNS = x509.KeyUsage(False, False, False, False, False, True, False, False, False)  # certificates, and nothing else
HERE = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])


def authority_and_server(folder: Path, authority: str, server: str) -> None:
    """A certificate authority and a certificate of this machine that it signed, as a strict verifier wants them."""
    now, day = datetime.datetime.now(datetime.UTC), datetime.timedelta(days=1)
    key_of = {name: ec.generate_private_key(ec.SECP384R1()) for name in (authority, server)}
    for name, key in key_of.items():
        by, subject = (x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, who)]) for who in (authority, name))
        serial = x509.random_serial_number()
        built = (
            x509.CertificateBuilder(by, subject, key.public_key(), serial, now - day, now + day)
            .add_extension(x509.BasicConstraints(name == authority, None), critical=True)
            .add_extension(SIGNS if name == authority else HERE, critical=name == authority)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(key_of[authority].public_key()), critical=False
            )
        )
        certificate = built.sign(key_of[authority], hashes.SHA256())
        (folder / f"{name}.crt").write_bytes(certificate.public_bytes(form.Encoding.PEM))
        secret = key.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption())
        (folder / f"{name}.key").write_bytes(secret)


def node_key(folder: Path, name: str) -> None:
    """A key pair as ``ssh-keygen -t ecdsa`` makes it."""
    key = ec.generate_private_key(ec.SECP384R1())
    secret = key.private_bytes(form.Encoding.PEM, form.PrivateFormat.OpenSSH, form.NoEncryption())
    (folder / name).write_bytes(secret)
    public = key.public_key().public_bytes(form.Encoding.OpenSSH, form.PublicFormat.OpenSSH)
    (folder / f"{name}.pub").write_bytes(public)


def credentials(folder: Path, key: str, authority: str = "ca") -> tuple[str, ...]:
    """What a node says who it is, and whom it believes."""
    return (
        *("--root-certificates", str(folder / f"{authority}.crt")),
        *("--auth-supernode-private-key", str(folder / key)),
    )


def asks_twice(network: Network, sign: Path) -> Path:
    """The example, with a server that repeats itself, and ends a round at a sign."""
    app = network.app()
    server = app / "silos" / "server_app.py"
    text = server.read_text()
    assert text.count("flower.PersonalisedAverage(") == 1
    server.write_text(text.replace("flower.PersonalisedAverage(", "Twice(") + TWICE.format(sign=sign))
    return app


def sent(network: Network, silo: int) -> int:
    """How many answers its node has sent."""
    return network.said(f"node{silo}").count("Sent successfully")


@pytest.fixture
def network(tmp_path: Path) -> Iterator[Network]:
    authority_and_server(tmp_path, "ca", "server")
    authority_and_server(tmp_path, "other-ca", "other-server")
    for name in ("hospital0", "hospital1", "stranger"):
        node_key(tmp_path, name)
    with network_in(tmp_path, f'root-certificates = "{tmp_path}/ca.crt"') as made:
        tls = (("--ssl-ca-certfile", "ca.crt"), ("--ssl-certfile", "server.crt"), ("--ssl-keyfile", "server.key"))
        flags = [part for flag, name in tls for part in (flag, str(tmp_path / name))]
        made.start_link(*flags, "--enable-supernode-auth")
        yield made


def test_only_who_is_registered_trains_and_late_or_repeated_answers_do_no_harm(
    network: Network, tmp_path: Path
) -> None:
    registered = [
        network.start(f"register{k}", "flwr", "supernode", "register", f"{tmp_path}/hospital{k}.pub", "here")
        for k in range(2)
    ]
    assert [one.wait(CEILING) for one in registered] == [0, 0]
    for k in range(2):
        network.start_node(f"node{k}", k, *credentials(tmp_path, f"hospital{k}"))
    config = (
        f"clients=2 rounds={ROUNDS} local-steps={STEPS} accountant='rdp' timeout={CEILING} out='{tmp_path}/model.npz'"
    )
    enough = tmp_path / "enough"
    app = asks_twice(network, enough)
    network.stop(1)
    run = network.start("run", "flwr", "run", str(app), "here", "--stream", "-c", config)
    network.until(lambda: network.book(1)["begun"] == [1], "silo 1 to begin round 1")
    assert network.answers(1) == []  # in the middle of the round

    # Meanwhile others try to come in. Without authentication the SuperLink would let the one in who has no key.
    refused = {
        "unknown": (credentials(tmp_path, "stranger"), "Failed to activate SuperNode"),
        "keyless": (("--root-certificates", f"{tmp_path}/ca.crt"), "All SuperNodes must be registered"),
        "deceived": (credentials(tmp_path, "hospital0", "other-ca"), "CERTIFICATE_VERIFY_FAILED"),
    }
    strangers = {name: network.start_node(name, 0, *how) for name, (how, _) in refused.items()}
    network.until(lambda: all(node.poll() is not None for node in strangers.values()), "them to be refused")
    for name, (_, why) in refused.items():
        assert strangers[name].returncode != 0
        assert why in network.said(name)

    network.until(lambda: sent(network, 0) == 1, "silo 0 to answer")
    enough.touch()
    network.until(lambda: "did not answer" in network.said("run"), "round 1 to end without silo 1")
    network.go_on(1)  # its answer to round 1 comes in round 2
    network.until(lambda: run.poll() is not None, "the run to end")

    said = network.said("run")
    assert (tmp_path / "model.npz").exists(), said
    with np.load(tmp_path / "model.npz") as state:
        assert all(np.isfinite(state[name]).all() for name in state.files)
    # The late answer is in no round. In round 2 silo 0 answered once and again, and was counted once.
    assert "{1: {'answers': '1'}, 2: {'answers': '2'}}" in said, said
    assert said.count("did not answer") == 1, said
    assert said.count("answered twice") == 1, said
    assert [sent(network, silo) for silo in range(2)] == [3, 2]
    # Late or not, a round is paid for; asked again, it is not paid for again.
    for silo in range(2):
        assert network.book(silo)["begun"] == [1, 2]
        assert network.answers(silo) == ["answer-1.npz", "answer-2.npz"]
