"""Make what a federation needs to know its own: certificates of the server, a key of each node.

python certificates.py server FOLDER NAME...   ca.crt, ca.key, server.crt, server.key
python certificates.py node FOLDER             node.key, node.pub

NAME is every host name and address under which nodes and users reach the SuperLink. Run `node` on
the node itself: its private key never leaves it. Files that are there are never replaced.
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
)

DAYS = 365  # the server's certificate
AUTHORITY_DAYS = 3650


def server(folder: Path, names: list[str]) -> None:
    """Write an authority and the server's certificate for these names, signed by it."""
    root, own = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    issuer, subject = called("federation authority"), called(names[0])
    key_of_root = x509.SubjectKeyIdentifier.from_public_key(root.public_key())
    by = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(key_of_root)
    signs = x509.KeyUsage(*[False] * 5, True, True, False, False)
    authority = begun(issuer, issuer, root.public_key(), AUTHORITY_DAYS)
    authority = authority.add_extension(x509.BasicConstraints(True, 0), True)
    authority = authority.add_extension(signs, True).add_extension(key_of_root, False)
    certificate = begun(issuer, subject, own.public_key(), DAYS)
    certificate = certificate.add_extension(
        x509.SubjectAlternativeName([alternative(name) for name in names]), False
    ).add_extension(by, False)
    certificate = certificate.add_extension(x509.BasicConstraints(False, None), True)
    write(folder / "ca.key", private(root, PrivateFormat.PKCS8))
    write(folder / "server.key", private(own, PrivateFormat.PKCS8))
    for name, made in (("ca.crt", authority), ("server.crt", certificate)):
        signed = made.sign(root, hashes.SHA256()).public_bytes(Encoding.PEM)
        write(folder / name, signed, 0o644)


def node(folder: Path) -> None:
    """Write a node's key pair, in the format that Flower reads (OpenSSH)."""
    key = ec.generate_private_key(ec.SECP256R1())
    write(folder / "node.key", private(key, PrivateFormat.OpenSSH))
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    write(folder / "node.pub", public + b"\n", 0o644)


def begun(
    issuer: x509.Name, subject: x509.Name, key: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    """Return a certificate to be completed, valid from an hour ago: clocks differ."""
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder(issuer, subject, key, x509.random_serial_number())
    builder = builder.not_valid_before(now - timedelta(hours=1))
    return builder.not_valid_after(now + timedelta(days=days))


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
    """Write a new file that only its owner reads, unless `mode` says else; never replace one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(data)
    print(path)


def main(words: list[str]) -> int:
    """Do what the command line asks for; return the exit status."""
    kind, folder, names = (words[0], Path(words[1]), words[2:]) if len(words) > 1 else ("", "", [])
    if not ((kind == "server" and names) or (kind == "node" and not names)):
        print(__doc__, file=sys.stderr)
        return 2
    try:
        server(Path(folder), names) if kind == "server" else node(Path(folder))
    except FileExistsError as error:
        print(f"{error.filename} is there already; choose another folder", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
