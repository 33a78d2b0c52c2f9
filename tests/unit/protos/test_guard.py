"""The wire contract only grows: protos/guard.py against the committed baseline, and each kind of break
against the guard."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet

from colibri.v1 import expert_pb2, generation_pb2, router_pb2

ROOT = Path(__file__).resolve().parents[3]


def _load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("colibri_proto_guard", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


guard = _load(ROOT / "protos" / "guard.py")


@pytest.fixture(scope="module")
def compiled() -> FileDescriptorSet:
    result: FileDescriptorSet = guard.compile_protos()
    return result


def test_protos_break_no_peer_of_the_baseline(compiled: FileDescriptorSet) -> None:
    assert guard.breaking_changes(guard.read_baseline(), compiled) == []


def test_baseline_holds_every_addition(compiled: FileDescriptorSet) -> None:
    assert guard.read_baseline() == compiled, "run: python protos/guard.py --update"


def test_generated_code_is_of_these_protos(compiled: FileDescriptorSet) -> None:
    for module in (expert_pb2, generation_pb2, router_pb2):
        generated = FileDescriptorProto()
        module.DESCRIPTOR.CopyToProto(generated)
        source = next(file for file in compiled.file if file.name == generated.name)
        generated.ClearField("options")
        assert not guard.breaking_changes(
            FileDescriptorSet(file=[source]), FileDescriptorSet(file=[generated])
        )
        assert not guard.breaking_changes(
            FileDescriptorSet(file=[generated]), FileDescriptorSet(file=[source])
        )


def _expert(files: FileDescriptorSet) -> FileDescriptorProto:
    return next(file for file in files.file if file.name.endswith("expert.proto"))


def _header_field(files: FileDescriptorSet, name: str) -> FieldDescriptorProto:
    header = next(message for message in _expert(files).message_type if message.name == "FrameHeader")
    return next(field for field in header.field if field.name == name)


def _remove_field(files: FileDescriptorSet) -> None:
    header = next(message for message in _expert(files).message_type if message.name == "FrameHeader")
    header.field.remove(_header_field(files, "epoch"))


def _renumber_field(files: FileDescriptorSet) -> None:
    _header_field(files, "epoch").number = 99


def _rename_field(files: FileDescriptorSet) -> None:
    _header_field(files, "epoch").name = "era"


def _retype_field(files: FileDescriptorSet) -> None:
    _header_field(files, "epoch").type = FieldDescriptorProto.TYPE_UINT32


def _other_message(files: FileDescriptorSet) -> None:
    _header_field(files, "kind").type_name = ".colibri.v1.Dtype"


def _unrepeat_field(files: FileDescriptorSet) -> None:
    _header_field(files, "entry_row").label = FieldDescriptorProto.LABEL_OPTIONAL


def _unpack_field(files: FileDescriptorSet) -> None:
    _header_field(files, "entry_row").options.packed = False


def _into_oneof(files: FileDescriptorSet) -> None:
    header = next(message for message in _expert(files).message_type if message.name == "FrameHeader")
    header.oneof_decl.add(name="either")
    _header_field(files, "epoch").oneof_index = 0


def _remove_message(files: FileDescriptorSet) -> None:
    _expert(files).message_type.remove(_expert(files).message_type[-1])


def _remove_nested_message(files: FileDescriptorSet) -> None:
    status = next(message for message in _expert(files).message_type if message.name == "StatusReply")
    del status.nested_type[:]


def _remove_enum_value(files: FileDescriptorSet) -> None:
    del _expert(files).enum_type[0].value[-1]


def _renumber_enum_value(files: FileDescriptorSet) -> None:
    _expert(files).enum_type[0].value[-1].number = 77


def _remove_enum(files: FileDescriptorSet) -> None:
    del _expert(files).enum_type[0]


def _remove_method(files: FileDescriptorSet) -> None:
    del _expert(files).service[0].method[0]


def _unstream_method(files: FileDescriptorSet) -> None:
    method = next(method for method in _expert(files).service[0].method if method.name == "Exchange")
    method.client_streaming = False


def _remove_service(files: FileDescriptorSet) -> None:
    del _expert(files).service[:]


def _remove_file(files: FileDescriptorSet) -> None:
    del files.file[0]


def _move_package(files: FileDescriptorSet) -> None:
    _expert(files).package = "colibri.v2"


BREAKS: list[Callable[[FileDescriptorSet], None]] = [
    _remove_field,
    _renumber_field,
    _rename_field,
    _retype_field,
    _other_message,
    _unrepeat_field,
    _unpack_field,
    _into_oneof,
    _remove_message,
    _remove_nested_message,
    _remove_enum_value,
    _renumber_enum_value,
    _remove_enum,
    _remove_method,
    _unstream_method,
    _remove_service,
    _remove_file,
    _move_package,
]


@pytest.mark.parametrize("change", BREAKS, ids=lambda change: change.__name__.strip("_"))
def test_refuses(compiled: FileDescriptorSet, change: Callable[[FileDescriptorSet], None]) -> None:
    changed = FileDescriptorSet.FromString(compiled.SerializeToString())
    change(changed)
    assert guard.breaking_changes(compiled, changed)


def test_refuses_a_reserved_number_put_to_use(compiled: FileDescriptorSet) -> None:
    reserved = FileDescriptorSet.FromString(compiled.SerializeToString())
    header = next(message for message in _expert(reserved).message_type if message.name == "FrameHeader")
    header.reserved_range.add(start=40, end=42)
    used = FileDescriptorSet.FromString(reserved.SerializeToString())
    header = next(message for message in _expert(used).message_type if message.name == "FrameHeader")
    header.field.add(
        name="new",
        number=41,
        type=FieldDescriptorProto.TYPE_BOOL,
        label=FieldDescriptorProto.LABEL_OPTIONAL,
    )
    assert guard.breaking_changes(reserved, used) == [
        "colibri.v1.FrameHeader.new = 41: the number is reserved"
    ]


def test_additions_are_no_breaks(compiled: FileDescriptorSet) -> None:
    grown = FileDescriptorSet.FromString(compiled.SerializeToString())
    header = next(message for message in _expert(grown).message_type if message.name == "FrameHeader")
    header.field.add(
        name="new",
        number=200,
        type=FieldDescriptorProto.TYPE_BOOL,
        label=FieldDescriptorProto.LABEL_OPTIONAL,
    )
    _expert(grown).message_type.add(name="New")
    _expert(grown).enum_type[0].value.add(name="COMPUTE_MODE_NEW", number=200)
    assert guard.breaking_changes(compiled, grown) == []
