"""python -m tf_comptrain.cli"""

from tf_comptrain.cli import main

if __name__ == "__main__":
    main()
