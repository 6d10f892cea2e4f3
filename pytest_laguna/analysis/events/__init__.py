# SPDX-License-Identifier: Apache-2.0
"""Rules of the event profile."""
