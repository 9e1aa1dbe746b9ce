"""Make what a federation needs to know its own: certificates of the server, a key of each node.

python certificates.py server FOLDER NAME...    ca.crt, ca.key, server.crt, server.key
python certificates.py renew FOLDER [NAME...]   a new server.crt and server.key, by ca.key in FOLDER
python certificates.py node FOLDER              node.key, node.pub

NAME is every host name and address under which nodes and users reach the SuperLink; `renew` takes
those of the old certificate unless told, and keeps the old pair as server.crt.old, server.key.old.
Each certificate is also for 127.0.0.1, where the SuperLink's own processes reach it.
Nodes go on with the ca.crt that they have. Run `node` on the node itself: its private key never
leaves it. Files that are there are not replaced otherwise.
"""

import os
import sys
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)

DAYS = 365  # the server's certificate
AUTHORITY_DAYS = 3650
LOOPBACK = "127.0.0.1"


def server(folder: Path, names: list[str]) -> None:
    """Write an authority and the server's certificate for these names, signed by it."""
    root, own = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    issuer = called("federation authority")
    signs = x509.KeyUsage(*[False] * 5, True, True, False, False)  # type: ignore[call-arg]
    until = datetime.now(UTC) + timedelta(days=AUTHORITY_DAYS)
    authority = begun(issuer, issuer, root.public_key(), until)
    authority = authority.add_extension(x509.BasicConstraints(True, 0), True)
    authority = authority.add_extension(signs, True)
    authority = authority.add_extension(key_of(root), False)
    signed = authority.sign(root, hashes.SHA256())
    write(folder / "ca.key", private(root, PrivateFormat.PKCS8))
    write(folder / "server.key", private(own, PrivateFormat.PKCS8))
    write(folder / "ca.crt", signed.public_bytes(Encoding.PEM), 0o644)
    write(folder / "server.crt", certify(own, names, root, signed), 0o644)


def renew(folder: Path, names: list[str]) -> None:
    """Write a new certificate and key of the server, signed by the authority that is there."""
    authority = x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes())
    root = load_pem_private_key((folder / "ca.key").read_bytes(), None)
    if not isinstance(root, ec.EllipticCurvePrivateKey):
        raise ValueError(f"{folder}/ca.key is no key that this program made")
    if root.public_key() != authority.public_key():
        raise ValueError(f"{folder}/ca.key is not the key of ca.crt beside it")
    if authority.not_valid_after_utc < datetime.now(UTC):
        raise ValueError(f"{folder}/ca.crt has expired; make a new authority, for all nodes too")
    names = names or read_names(folder / "server.crt")
    own = ec.generate_private_key(ec.SECP256R1())
    certificate = certify(own, names, root, authority)
    pair = {"server.key": private(own, PrivateFormat.PKCS8), "server.crt": certificate}
    for name, data in pair.items():  # whole, and beside the old pair before that is touched
        (folder / f"{name}.new").unlink(missing_ok=True)
        create(folder / f"{name}.new", data, 0o644 if name.endswith(".crt") else 0o600)
    for name in pair:
        if (folder / name).exists():
            (folder / name).replace(folder / f"{name}.old")
        (folder / f"{name}.new").replace(folder / name)
        print(folder / name)


def certify(
    key: ec.EllipticCurvePrivateKey,
    names: list[str],
    root: ec.EllipticCurvePrivateKey,
    authority: x509.Certificate,
) -> bytes:
    """Return the server's certificate for these names, which never outlives the authority."""
    until = min(datetime.now(UTC) + timedelta(days=DAYS), authority.not_valid_after_utc)
    names = [*names, *({LOOPBACK} - {*names})]
    by = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(key_of(root))
    certificate = begun(authority.subject, called(names[0]), key.public_key(), until)
    certificate = certificate.add_extension(
        x509.SubjectAlternativeName([alternative(name) for name in names]), False
    ).add_extension(by, False)
    certificate = certificate.add_extension(x509.BasicConstraints(False, None), True)
    return certificate.sign(root, hashes.SHA256()).public_bytes(Encoding.PEM)


def read_names(path: Path) -> list[str]:
    """Return the names that a certificate is for."""
    certificate = x509.load_pem_x509_certificate(path.read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    return [str(name.value) for name in names.value]


def key_of(key: ec.EllipticCurvePrivateKey) -> x509.SubjectKeyIdentifier:
    """Return what a certificate calls a key."""
    return x509.SubjectKeyIdentifier.from_public_key(key.public_key())


def node(folder: Path) -> None:
    """Write a node's key pair, in the format that Flower reads (OpenSSH)."""
    key = ec.generate_private_key(ec.SECP256R1())
    write(folder / "node.key", private(key, PrivateFormat.OpenSSH))
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    write(folder / "node.pub", public + b"\n", 0o644)


def begun(
    issuer: x509.Name, subject: x509.Name, key: ec.EllipticCurvePublicKey, until: datetime
) -> x509.CertificateBuilder:
    """Return a certificate to be completed, valid from an hour ago: clocks differ."""
    builder = x509.CertificateBuilder(issuer, subject, key, x509.random_serial_number())
    builder = builder.not_valid_before(datetime.now(UTC) - timedelta(hours=1))
    return builder.not_valid_after(until)


def called(name: str) -> x509.Name:
    """Return a common name."""
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])


def alternative(name: str) -> x509.GeneralName:
    """Return an address as an address, anything else as a host name."""
    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def private(key: ec.EllipticCurvePrivateKey, how: PrivateFormat) -> bytes:
    """Return a private key without a password: the server has to start by itself."""
    return key.private_bytes(Encoding.PEM, how, NoEncryption())


def write(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Write a new file, as `create` does, and print its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    create(path, data, mode)
    print(path)


def create(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Create a file that only its owner reads, unless `mode` says else; never replace one."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(data)


def main(words: list[str]) -> int:
    """Do what the command line asks for; return the exit status."""
    kind, folder, names = (words[0], Path(words[1]), words[2:]) if len(words) > 1 else ("", "", [])
    folder = Path(folder)
    try:
        if kind == "server" and names:
            server(folder, names)
        elif kind == "renew":
            renew(folder, names)
        elif kind == "node" and not names:
            node(folder)
        else:
            print(__doc__, file=sys.stderr)
            return 2
    except FileExistsError as error:
        print(f"{error.filename} is there already; choose another folder", file=sys.stderr)
        return 2
    except (FileNotFoundError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
