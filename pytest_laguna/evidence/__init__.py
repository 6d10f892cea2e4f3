# SPDX-License-Identifier: Apache-2.0
"""Reading and writing evidence: the sealed root and every file in it."""
