"""python -m routecap_tools"""

from .command import main

if __name__ == "__main__":
    raise SystemExit(main())
