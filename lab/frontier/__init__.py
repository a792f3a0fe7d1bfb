"""Does replay matter? The experiment that README.md in this folder registers.

PYTHONPATH=lab python3 -m frontier --help
"""
