"""A broker as companies run it: TLS, passwords, client certificates and rights. It starts once for a whole test run."""

import secrets
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import trustme
from cryptography.hazmat.primitives import serialization

from jobs.local import broker, process
from jobs.local.ports import HOST, Ports


@dataclass(frozen=True, kw_only=True, slots=True)
class Secure:
    """Where the broker listens, and what its clients need."""

    internal: str
    """The plaintext listener, where everything is allowed."""
    sasl: str
    """SASL_SSL: PLAIN for `paul`, SCRAM-SHA-512 for `sarah`; and `peter` (PLAIN), who has no rights."""
    mtls: str
    """SSL, with a certificate asked of the client: `mia`."""
    password: str
    """Everybody's."""
    authority: Path
    stranger: Path
    """The certificate of an authority that signed nothing here."""
    certificate: Path
    key: Path
    locked_key: Path
    """The same key, encrypted with the password."""


@pytest.fixture(scope="session")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secure]:
    """A broker with four listeners on loopback: the controller's and the three of `Secure`."""
    folder = tmp_path_factory.mktemp("secure")
    ports, password = Ports.free(), f"pass-{secrets.token_hex(12)}"
    # Two of the four free ports would be other services'.
    told = _clients(folder, ports, sasl=ports.mlflow, mtls=ports.airflow, password=password)
    settings = folder / "server.properties"
    values = broker.properties(folder / "data", ports) | _listeners(folder, ports, told)
    settings.write_text("".join(f"{key}={broker._escaped(str(value))}\n" for key, value in values.items()))
    scram = f"SCRAM-SHA-512=[name=sarah,password={password}]"
    subprocess.run(
        broker.command(
            "kafka.tools.StorageTool", "format", "-t", broker._cluster_id(), "-c", str(settings), "--add-scram", scram
        ),
        check=True,
        capture_output=True,
    )
    started = process.start(
        "kafka",
        broker.command("kafka.Kafka", str(settings)),
        port=ports.kafka,
        log=folder / "kafka.log",
        environment={"PATH": "/usr/bin:/bin"},
        folder=folder,
    )
    try:
        while not broker.ready(ports.kafka):
            assert started.process(), started.tail(40)
        yield told
    finally:
        process.end([started])


def _clients(folder: Path, ports: Ports, *, sasl: int, mtls: int, password: str) -> Secure:
    """Write the certificates; the broker's is for the address alone, not for `localhost`."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(folder / "authority.pem")
    trustme.CA().cert_pem.write_to_path(folder / "stranger.pem")
    server = authority.issue_cert(HOST, common_name="broker")
    (folder / "broker.pem").write_bytes(_key(server) + b"".join(piece.bytes() for piece in server.cert_chain_pems))
    mia = authority.issue_cert("mia.test", common_name="mia")
    mia.cert_chain_pems[0].write_to_path(folder / "mia.pem")
    (folder / "mia.key").write_bytes(_key(mia))
    (folder / "mia-locked.key").write_bytes(_key(mia, password))
    return Secure(
        internal=f"{HOST}:{ports.kafka}",
        sasl=f"{HOST}:{sasl}",
        mtls=f"{HOST}:{mtls}",
        password=password,
        authority=folder / "authority.pem",
        stranger=folder / "stranger.pem",
        certificate=folder / "mia.pem",
        key=folder / "mia.key",
        locked_key=folder / "mia-locked.key",
    )


def _key(certificate: trustme.LeafCert, password: str = "") -> bytes:
    """The private key as PKCS #8, the only form that Kafka reads."""
    key = serialization.load_pem_private_key(certificate.private_key_pem.bytes(), None)
    lock = serialization.BestAvailableEncryption(password.encode()) if password else serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, lock)


def _listeners(folder: Path, ports: Ports, told: Secure) -> dict[str, object]:
    """What this broker has beyond the embedded one."""
    plain = " ".join(f'user_{name}="{told.password}"' for name in ("paul", "peter"))
    module = "org.apache.kafka.common.security"
    return {
        "listeners": f"PLAINTEXT://{told.internal},CONTROLLER://{HOST}:{ports.controller},SASL://{told.sasl},MTLS://{told.mtls}",
        "advertised.listeners": f"PLAINTEXT://{told.internal},SASL://{told.sasl},MTLS://{told.mtls}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL:SASL_SSL,MTLS:SSL",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": folder / "broker.pem",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": told.authority,
        "listener.name.mtls.ssl.client.auth": "required",
        "ssl.principal.mapping.rules": "RULE:^CN=([^,]+).*$/$1/,DEFAULT",
        "listener.name.sasl.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
        "listener.name.sasl.plain.sasl.jaas.config": f"{module}.plain.PlainLoginModule required {plain};",
        "listener.name.sasl.scram-sha-512.sasl.jaas.config": f"{module}.scram.ScramLoginModule required;",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
