"""Flower with TLS and SuperNode authentication: strangers are refused, and late or repeated answers do no harm."""

from __future__ import annotations

import datetime
import ipaddress
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from flower_network import APP, Network, network_in, until

pytest.importorskip("flwr")
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives import serialization as form
from cryptography.hazmat.primitives.asymmetric import ec

ROUNDS, TIMEOUT = 2, 40.0  # Flower takes a node for gone after a minute of silence
# Long enough to be paused in the middle of a round.
STEPS = 1000

# Flower itself repeats nothing, so the app's server does: whoever answered the round before is asked a second time.
TWICE = """

class Twice(flower.PersonalisedAverage):
    def configure_train(self, number, *rest):
        from flwr.app import Message

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


def asks_twice(folder: Path) -> Path:
    """The example, with a server that repeats itself."""
    app = shutil.copytree(APP, folder / "app", ignore=shutil.ignore_patterns("__pycache__"))
    server = app / "silos" / "server_app.py"
    text = server.read_text()
    assert text.count("flower.PersonalisedAverage(") == 1
    server.write_text(text.replace("flower.PersonalisedAverage(", "Twice(") + TWICE)
    return app


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
    assert [one.wait(60) for one in registered] == [0, 0]
    for k in range(2):
        network.start_node(f"node{k}", k, *credentials(tmp_path, f"hospital{k}"))
    config = (
        f"clients=2 rounds={ROUNDS} local-steps={STEPS} accountant='rdp' timeout={TIMEOUT} out='{tmp_path}/model.npz'"
    )
    run = network.start("run", "flwr", "run", str(asks_twice(tmp_path)), "here", "--stream", "-c", config)
    until(lambda: network.book(1)["begun"] == [1], 120, "silo 1 to begin round 1")
    network.pause("node1")
    assert network.answers(1) == []  # in the middle of the round

    # Meanwhile others try to come in. Without authentication the SuperLink would let the one in who has no key.
    refused = {
        "unknown": (credentials(tmp_path, "stranger"), "Failed to activate SuperNode"),
        "keyless": (("--root-certificates", f"{tmp_path}/ca.crt"), "All SuperNodes must be registered"),
        "deceived": (credentials(tmp_path, "hospital0", "other-ca"), "CERTIFICATE_VERIFY_FAILED"),
    }
    strangers = {name: network.start_node(name, 0, *how) for name, (how, _) in refused.items()}
    until(lambda: all(node.poll() is not None for node in strangers.values()), 60, "them to be refused and give up")
    for name, (_, why) in refused.items():
        assert strangers[name].returncode != 0
        assert why in network.said(name)

    until(lambda: "did not answer" in network.said("run"), 120, "round 1 to end without silo 1")
    network.go_on("node1")  # its answer to round 1 comes in round 2
    until(lambda: run.poll() is not None, 120, "the run to end")

    said = network.said("run")
    assert (tmp_path / "model.npz").exists(), said
    with np.load(tmp_path / "model.npz") as state:
        assert all(np.isfinite(state[name]).all() for name in state.files)
    # The late answer is in no round. In round 2 silo 0 answered once and again, and was counted once; on a machine
    # that is too busy the second answer comes too late, and then it is not even heard of.
    assert "{1: {'answers': '1'}, 2: {'answers': '2'}}" in said, said
    assert said.count("did not answer") == 1, said
    assert said.count("answered twice") <= 1, said
    assert [network.said(f"node{k}").count("Sent successfully") for k in range(2)] in ([3, 2], [2, 2])
    # Late or not, a round is paid for; asked again, it is not paid for again.
    for silo in range(2):
        assert network.book(silo)["begun"] == [1, 2]
        assert network.answers(silo) == ["answer-1.npz", "answer-2.npz"]
