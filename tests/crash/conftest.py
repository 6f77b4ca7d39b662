import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "support"))

from kvc_fixtures import *  # noqa: E402,F401,F403
from kvc_fixtures import _deadline, _native, _shared_mount  # noqa: E402,F401
