# SPDX-License-Identifier: Apache-2.0
"""Sealed evidence for people: HTML report, trace, JUnit and terminal lines."""
