"""The certificates of one cluster: those of a certificate authority, of a server at 127.0.0.1 and localhost, and of a client."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

from ._errors import ClusterError


@dataclass(frozen=True)
class Certificates:
    """The certificate files in ``directory``: ``ca.pem``, the certificates ``server.pem`` and ``client.pem``, which the
    authority of ``ca.pem`` has signed, and their private keys ``server.key`` and ``client.key``.
    """

    directory: Path

    @classmethod
    def make(cls, directory: Path) -> Certificates:
        """Create new certificates in ``directory``.

        Raises:
            ClusterError: If the package trustme is missing.
        """
        try:
            import trustme
        except ImportError:
            raise ClusterError(
                "certificates need the package trustme, which is not installed; run pip install 'rmq-async[test]'"
            ) from None
        directory.mkdir(parents=True, exist_ok=True)
        made = cls(directory)
        authority = trustme.CA()
        authority.cert_pem.write_to_path(made._file("ca.pem"))
        for name, hosts in (("server", ("127.0.0.1", "localhost")), ("client", ("client.example",))):
            leaf = authority.issue_cert(*hosts)
            made._file(f"{name}.pem").write_bytes(b"".join(blob.bytes() for blob in leaf.cert_chain_pems))
            made._file(f"{name}.key").write_bytes(_pkcs8(leaf.private_key_pem.bytes()))
        return made

    def context(self, *, client: bool = False) -> ssl.SSLContext:
        """Return an SSLContext for clients that trusts only ``ca.pem``. With ``client``, the context presents the client's
        certificate.
        """
        context = ssl.create_default_context(cafile=self._file("ca.pem"))
        if client:
            context.load_cert_chain(self._file("client.pem"), self._file("client.key"))
        return context

    def _file(self, name: str) -> Path:
        return self.directory / name


def _pkcs8(key: bytes) -> bytes:
    """Convert a private key to PKCS #8, the only form that the Java servers accept."""
    from cryptography.hazmat.primitives import serialization as forms

    read = forms.load_pem_private_key(key, password=None)
    return read.private_bytes(forms.Encoding.PEM, forms.PrivateFormat.PKCS8, forms.NoEncryption())
