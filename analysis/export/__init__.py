"""A study's numbers for the tools that people already have open. Nothing is sent anywhere: all of it is files.

    python -m analysis export results/X --tensorboard DIR | --mlflow DIR | --wandb DIR

    runs.py         a configuration as such tools know it: a run with parameters, metrics, and a point a repeat
    tensorboard.py, mlflow.py, wandb.py      each tool's own library, imported only where it is asked for

The libraries are optional: `pip install 'scaling-study[export]'`.
"""
