"""A study on a Slurm cluster: submitted, observed, collected. No process of ours need stay alive in between.

    run_sweep.py STUDY --slurm partition=gpu,time=2:00:00                   one job: the ordinary sweep, inside it
    run_sweep.py STUDY --slurm partition=gpu,time=2:00:00 --per-trial       one job a trial

          batch_script.py -> submit.py ---- sbatch ----> job.sh: setup, then the sweep, or submit.run
                                |                          |
           results/<study>/slurm/<name>/ (jobs.py)         |  trials/<id>/record.json, as ever
                     job.json   what was submitted         |  exit.json: how the script ended
                                |                          |
                   collect.py <- jobs.py --------- squeue, sacct ---- Slurm's report, while it remembers

A trial whose job was cancelled, preempted, out of time or memory, or whose node failed, has no record: collect.py
writes one from Slurm's report (jobs.py), else from the script's exit status, else as vanished.

Plain sbatch and squeue, not submitit: without an accounting database submitit never notices a job that was killed.
"""
