"""A study on a Slurm cluster: submitted, looked at, collected. Nothing of it need stay alive in between.

    run_sweep.py STUDY --slurm partition=gpu,time=2:00:00                   one job: the ordinary sweep, inside it
    run_sweep.py STUDY --slurm partition=gpu,time=2:00:00 --per-trial       one job a trial

          options.py -> script.py -> submit.py ---- sbatch ----> job.sh: setup, then the sweep, or one_trial.py
                                        |                          |
                         results/<study>/slurm/<name>/             |  trials/<id>/record.json, as ever
                             job.json   what was submitted         |  exit.json: how the script ended
                                        |                          |
          status.py, collect.py <- controller.py ---- squeue, sacct ---- Slurm's word, while it has not forgotten

A trial whose job was cancelled, preempted, out of time or memory, or whose node failed, has no record: collect.py
makes one of it, from what Slurm says (states.py), else from what the script left, else says that it has vanished.

Plain sbatch and squeue, not submitit: without an accounting database submitit never notices a job that was killed.
"""
