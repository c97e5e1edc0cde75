"""What a process needs to reach emulated GPUs: the standard library only, so that children start fast.

The modules here import each other relatively: a child process loads this folder by its path, without the packages
above it (those load numpy and scipy).
"""
