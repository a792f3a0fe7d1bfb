"""The bill of materials of a release, as CycloneDX: its artefacts with their checksums, and what is
inside of them that is not routecap's.

usage: sbom.py VERSION ZIG_VERSION CHECKSUMS OUTPUT, where CHECKSUMS is what sha256sum writes
"""

import datetime
import os
import pathlib
import sys
import uuid

from cyclonedx.model import (
    ExternalReference,
    ExternalReferenceType,
    HashAlgorithm,
    HashType,
    Property,
    XsUri,
)
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Component, ComponentScope, ComponentType
from cyclonedx.model.contact import OrganizationalEntity
from cyclonedx.model.license import LicenseExpression
from cyclonedx.output.json import JsonV1Dot6
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL

version, zig_version, checksums, output = sys.argv[1:]


def part(
    name: str, version: str | None, licence: str, description: str, **more: object
) -> Component:
    return Component(
        name=name,
        version=version,
        licenses=[LicenseExpression(licence)],
        description=description,
        bom_ref=name,
        **more,
    )


inside = [
    part(
        "base64",
        "0.5.2",
        "BSD-2-Clause",
        "in src/third_party/base64; compiled into the library",
        purl=PackageURL("github", "aklomp", "base64", "v0.5.2"),
    ),
    part(
        "BLAKE2",
        None,
        "CC0-1.0",
        "the reference code of BLAKE2b in src/third_party/blake2; compiled into the library",
        purl=PackageURL("github", "BLAKE2", "BLAKE2"),
    ),
    part(
        "crc32c",
        "1.1.2",
        "BSD-3-Clause",
        "in src/third_party/crc32c; compiled into the library",
        purl=PackageURL("github", "google", "crc32c", "1.1.2"),
    ),
    part(
        "libc++, libc++abi, libunwind",
        None,
        "Apache-2.0 WITH LLVM-exception",
        "the C++ runtime, linked into the built libraries",
        properties=[Property(name="routecap:from", value=f"zig {zig_version}")],
    ),
]
outside = [
    part(
        "glibc",
        "2.28 or newer",
        "LGPL-2.1-or-later",
        "of the system",
        scope=ComponentScope.EXCLUDED,
    ),
    part(
        "numpy",
        "1.25 or newer",
        "BSD-3-Clause",
        "for the Python package",
        scope=ComponentScope.EXCLUDED,
        purl=PackageURL("pypi", None, "numpy"),
    ),
    part(
        "NVIDIA driver",
        "580 or newer",
        "LicenseRef-NVIDIA",
        "for the CUDA backend, loaded when a CUDA capturer is made",
        scope=ComponentScope.EXCLUDED,
    ),
]
routecap = part(
    "routecap",
    version,
    "Apache-2.0",
    "Capture of mixture-of-experts routing",
    type=ComponentType.LIBRARY,
    supplier=OrganizationalEntity(name="The routecap authors"),
    external_references=[
        ExternalReference(
            type=ExternalReferenceType.VCS, url=XsUri("https://github.com/routecap/routecap")
        )
    ],
)

bom = Bom(
    metadata=BomMetaData(
        component=routecap,
        timestamp=datetime.datetime.fromtimestamp(
            int(os.environ["SOURCE_DATE_EPOCH"]), datetime.UTC
        ),
    ),
    components=inside + outside,
)
lines = pathlib.Path(checksums).read_text()
bom.serial_number = uuid.uuid5(uuid.NAMESPACE_OID, lines)
for line in lines.splitlines():
    checksum, name = line.split(maxsplit=1)
    bom.components.add(
        Component(
            name=name,
            version=version,
            type=ComponentType.FILE,
            bom_ref=name,
            hashes=[HashType(alg=HashAlgorithm.SHA_256, content=checksum)],
        )
    )
bom.register_dependency(routecap, [*inside, *outside])

text = JsonV1Dot6(bom).output_as_string(indent=2)
if error := JsonStrictValidator(SchemaVersion.V1_6).validate_str(text):
    sys.exit(f"not a CycloneDX 1.6 document: {error}")
pathlib.Path(output).write_text(text + "\n")
