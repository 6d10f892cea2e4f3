# SPDX-License-Identifier: Apache-2.0
"""One gate session, from its precondition to its receipt."""
