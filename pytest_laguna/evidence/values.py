# SPDX-License-Identifier: Apache-2.0
"""Value types of campaigns, plans and records."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias, TypeVar

import pydantic

_Name = TypeVar("_Name", bound=str)
SchemaName: TypeAlias = Annotated[_Name, pydantic.Field(alias="schema")]
"""Name of a file's schema, under the key ``schema`` of its JSON: ``SchemaName[Literal["..."]]``."""

Lane: TypeAlias = Literal["cpu", "cuda", "xpu"]
"""Kind of device of an arm."""

Validator: TypeAlias = Literal["native", "python"]
"""Implementation of the candidate's contract."""

Decides: TypeAlias = Literal["exactness", "exactness+timing"]
"""Deciding rules of a lane; with ``exactness``, timing is reported only."""

Count = Annotated[int, pydantic.Field(ge=0)]
PositiveCount = Annotated[int, pydantic.Field(ge=1)]
Finite = Annotated[float, pydantic.Field(allow_inf_nan=False)]
NonNegative = Annotated[float, pydantic.Field(ge=0, allow_inf_nan=False)]
Positive = Annotated[float, pydantic.Field(gt=0, allow_inf_nan=False)]
Share = Annotated[float, pydantic.Field(ge=0, le=1)]
Text = Annotated[str, pydantic.Field(min_length=1)]
