"""Every value that a schema bounds: at the bound it is taken, one step beyond it is refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import annotated_types as at
import pytest
from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from tests.limits.table import TABLE

EPSILON = 1e-6


def bounds() -> Iterator[Any]:
    """(settings, field, a value that is taken, a value that is not) for each bound of each field."""
    for settings in TABLE:
        if not issubclass(settings, BaseModel):
            continue
        for name, field in settings.model_fields.items():
            for inside, outside in _edges(field):
                yield pytest.param(field, inside, outside, id=f"{settings.__name__}.{name}-{outside}")


def _edges(field: FieldInfo) -> Iterator[tuple[float, float]]:
    step = 1 if "int" in str(field.annotation) else EPSILON
    for bound in field.metadata:
        match bound:
            case at.Ge(ge=least):
                yield least, least - step  # type: ignore[operator]
            case at.Gt(gt=below):
                yield below + step, below  # type: ignore[operator, misc]
            case at.Le(le=most):
                yield most, most + step  # type: ignore[operator]


@pytest.mark.behaviour("X14")
@pytest.mark.parametrize(("field", "inside", "outside"), list(bounds()))
def test_a_value_at_a_bound_is_taken_and_one_beyond_it_refused(field: FieldInfo, inside: float, outside: float) -> None:
    adapter: TypeAdapter[Any] = TypeAdapter(Annotated[(field.annotation, *field.metadata)])  # type: ignore[misc]
    assert adapter.validate_python(inside) == inside
    with pytest.raises(ValidationError):
        adapter.validate_python(outside)
