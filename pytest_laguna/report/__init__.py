# SPDX-License-Identifier: Apache-2.0
"""What is made of sealed evidence for people to look at."""
