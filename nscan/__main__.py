"""``python -m nscan``: train a character language model on a novel."""

from nscan.demo.command import main

if __name__ == "__main__":
    main()
