"""A study file -> its trials. Pure: the same file, machine and data give the same plan on any machine."""
