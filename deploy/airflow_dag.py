"""A DAG for Airflow 2 or 3: every night, compare methods on the newest log, and export the model that is wanted.

A live model needs no DAG: `serve` learns by itself.
"""

from datetime import datetime, timedelta

from airflow import DAG
from airflow.operators.bash import BashOperator

ROOM = "/data/tracecvr/{{ ds }}"

with DAG(
    "tracecvr",
    schedule="0 3 * * *",
    start_date=datetime(2026, 1, 1),
    catchup=False,
    default_args={"retries": 2, "retry_delay": timedelta(minutes=10)},
) as dag:
    prepare = BashOperator(
        task_id="prepare",
        bash_command=f"tracecvr prepare logs --schema /data/schema.toml --out {ROOM}/table",
    )
    run = BashOperator(
        task_id="run",
        bash_command=f"tracecvr run --method telescoped --source {ROOM}/table --out {ROOM}/run --resume",
    )
    export = BashOperator(
        task_id="export",
        bash_command=f"tracecvr export {ROOM}/run --out {ROOM}/model",
    )
    prepare >> run >> export
