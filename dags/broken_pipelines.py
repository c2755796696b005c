"""Shows each pipeline that can't be loaded as an import error in Airflow; it holds no DAG itself.

An import error takes all DAGs of its file away, so it is raised here, and not in `pipeline_dags.py`.
"""

import sys
from pathlib import Path

# As in `pipeline_dags.py`.
if (root := str(Path(__file__).resolve().parent.parent)) not in sys.path:
    sys.path.append(root)

import pipelines

if broken := pipelines.load_all()[1]:
    raise ValueError("\n".join(broken.values()))
