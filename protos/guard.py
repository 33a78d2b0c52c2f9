"""Guards the wire contract: compares the protos with protos/baseline.binpb, the descriptors as last agreed
on.

    python protos/guard.py                          lists what changed; exit 1 for anything that breaks a peer
    python protos/guard.py --update                 takes additions into the baseline
    python protos/guard.py --update --allow-breaking  also takes what breaks peers that run an older version

Breaking is what an older peer would misread, or miss at compile time: a message, field, enum, value, service
or method that is gone, renamed, renumbered, retyped or moved into another oneof, and a reserved number put to
use again.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from google.protobuf import descriptor_pb2
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorSet,
    MethodDescriptorProto,
    ServiceDescriptorProto,
)

ROOT = Path(__file__).resolve().parent
BASELINE = ROOT / "baseline.binpb"

Change = str


def compile_protos(root: Path = ROOT) -> FileDescriptorSet:
    """Descriptors of every proto below `root`, without comments, files in order of name."""
    from grpc_tools import protoc

    files = sorted(str(path.relative_to(root)) for path in root.rglob("*.proto"))
    with tempfile.TemporaryDirectory(prefix="colibri-protos-") as scratch:
        out = Path(scratch) / "set.binpb"
        code = protoc.main(["protoc", f"-I{root}", f"--descriptor_set_out={out}", *files])
        if code != 0:
            raise SystemExit(f"protoc: exit code {code}")
        return FileDescriptorSet.FromString(out.read_bytes())


def read_baseline(path: Path = BASELINE) -> FileDescriptorSet:
    return FileDescriptorSet.FromString(path.read_bytes())


def breaking_changes(old: FileDescriptorSet, new: FileDescriptorSet) -> list[Change]:
    """One line for each thing of `old` that `new` breaks; additions are no breaks."""
    return list(_compare(_symbols(old), _symbols(new)))


Symbol = DescriptorProto | EnumDescriptorProto | ServiceDescriptorProto


def _symbols(files: FileDescriptorSet) -> dict[str, Symbol]:
    """Every message, enum and service by full name, nested ones included."""
    found: dict[str, Symbol] = {}

    def visit(scope: str, message: DescriptorProto) -> None:
        found[f"{scope}.{message.name}"] = message
        for nested in message.nested_type:
            visit(f"{scope}.{message.name}", nested)
        for enum in message.enum_type:
            found[f"{scope}.{message.name}.{enum.name}"] = enum

    for file in files.file:
        for message in file.message_type:
            visit(file.package, message)
        for enum in file.enum_type:
            found[f"{file.package}.{enum.name}"] = enum
        for service in file.service:
            found[f"{file.package}.{service.name}"] = service
    return found


def _compare(old: Mapping[str, Symbol], new: Mapping[str, Symbol]) -> Iterator[Change]:
    for name, before in old.items():
        after = new.get(name)
        if type(after) is not type(before):
            yield f"{name}: removed"
        elif isinstance(before, DescriptorProto) and isinstance(after, DescriptorProto):
            yield from _compare_message(name, before, after)
        elif isinstance(before, EnumDescriptorProto) and isinstance(after, EnumDescriptorProto):
            yield from _compare_enum(name, before, after)
        elif isinstance(before, ServiceDescriptorProto) and isinstance(after, ServiceDescriptorProto):
            yield from _compare_service(name, before, after)


def _compare_message(name: str, old: DescriptorProto, new: DescriptorProto) -> Iterator[Change]:
    fields = {field.number: field for field in new.field}
    for before in old.field:
        after = fields.get(before.number)
        if after is None:
            yield f"{name}.{before.name} = {before.number}: removed or renumbered"
            continue
        was, now = _describe_field(old, before), _describe_field(new, after)
        if was != now:
            yield f"{name}.{before.name} = {before.number}: was '{was}', is '{now}'"
    for span in old.reserved_range:
        for number in range(span.start, span.end):
            if number in fields:
                yield f"{name}.{fields[number].name} = {number}: the number is reserved"


def _describe_field(message: DescriptorProto, field: FieldDescriptorProto) -> str:
    """All that a peer's generated code or decoder depends on."""
    kind = field.type_name or FieldDescriptorProto.Type.Name(field.type).removeprefix("TYPE_").lower()
    words = [FieldDescriptorProto.Label.Name(field.label).removeprefix("LABEL_").lower(), kind, field.name]
    if field.options.HasField("packed"):
        words.append(f"packed={field.options.packed}")
    if field.proto3_optional:
        words.append("explicit presence")
    elif field.HasField("oneof_index"):
        words.append(f"in oneof {message.oneof_decl[field.oneof_index].name}")
    return " ".join(words)


def _compare_enum(name: str, old: EnumDescriptorProto, new: EnumDescriptorProto) -> Iterator[Change]:
    values = {value.number: value.name for value in new.value}
    for value in old.value:
        if values.get(value.number) != value.name:
            yield f"{name}.{value.name} = {value.number}: removed, renamed or renumbered"


def _compare_service(name: str, old: ServiceDescriptorProto, new: ServiceDescriptorProto) -> Iterator[Change]:
    methods = {method.name: method for method in new.method}
    for before in old.method:
        after = methods.get(before.name)
        if after is None:
            yield f"{name}.{before.name}: removed"
        elif _describe_method(before) != _describe_method(after):
            yield f"{name}.{before.name}: was '{_describe_method(before)}', is '{_describe_method(after)}'"


def _describe_method(method: MethodDescriptorProto) -> str:
    asks = "stream " * method.client_streaming + method.input_type
    answers = "stream " * method.server_streaming + method.output_type
    return f"{asks} -> {answers}"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--update", action="store_true")
    parser.add_argument("--allow-breaking", action="store_true")
    args = parser.parse_args()
    current = compile_protos()
    baseline = read_baseline() if BASELINE.exists() else descriptor_pb2.FileDescriptorSet()
    breaks = breaking_changes(baseline, current)
    for line in breaks:
        print(f"breaking: {line}")
    if breaks and not (args.update and args.allow_breaking):
        return 1
    if current == baseline:
        print("the protos are as in the baseline")
    elif args.update:
        BASELINE.write_bytes(current.SerializeToString(deterministic=True))
        print(f"{BASELINE.name} updated: commit it with the protos")
    else:
        print("the protos have additions: take them in with --update")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
