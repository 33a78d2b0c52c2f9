"""Fill Python values into a message's fields; errors name the field by its path."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from colibri.errors import InvalidInput

_KINDS = {
    FieldDescriptor.CPPTYPE_UINT32: "a whole number from 0 to 4294967295",
    FieldDescriptor.CPPTYPE_UINT64: "a whole number from 0 to 18446744073709551615",
    FieldDescriptor.CPPTYPE_INT32: "a whole number from -2147483648 to 2147483647",
    FieldDescriptor.CPPTYPE_FLOAT: "a number",
    FieldDescriptor.CPPTYPE_DOUBLE: "a number",
    FieldDescriptor.CPPTYPE_BOOL: "True or False",
    FieldDescriptor.CPPTYPE_STRING: "text that UTF-8 can hold",
}


def fill(message: Message, values: Mapping[str, Any], path: str = "") -> None:
    """Sets fields of `message`; None leaves a field unset.

    values: field name -> value; a list or tuple for a repeated field.
    path: of `message` within the request, "" for the request itself.
    Raises InvalidInput naming the field, and the item of a repeated one.
    """
    for name, value in values.items():
        if value is None:
            continue
        kind = _KINDS[message.DESCRIPTOR.fields_by_name[name].cpp_type]
        label = f"{path}.{name}" if path else name
        # Not by `isinstance(value, Sequence)`: arrays of NumPy are welcome, too.
        if isinstance(getattr(message, name), (str, bytes, int, float, bool)):
            try:
                setattr(message, name, value)
            except (ValueError, TypeError) as error:
                raise InvalidInput(label, kind, repr(value)) from error
        else:
            _extend(getattr(message, name), value, label, kind)


def _extend(field: Any, items: Sequence[Any], label: str, kind: str) -> None:
    several = f"a sequence, each {kind}"
    if isinstance(items, (str, bytes)):
        raise InvalidInput(label, several, repr(items))
    try:
        field.extend(items)
        return
    except (ValueError, TypeError) as error:
        cause = error
    try:
        numbered = enumerate(items)
    except TypeError:
        raise InvalidInput(label, several, repr(items)) from cause
    del field[:]
    for index, item in numbered:
        try:
            field.append(item)
        except (ValueError, TypeError) as error:
            raise InvalidInput(f"{label}[{index}]", kind, repr(item)) from error
    raise InvalidInput(label, "a sequence that can be read twice", repr(items)) from cause
