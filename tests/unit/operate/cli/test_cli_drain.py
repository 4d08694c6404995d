"""``headrace drain``: an app is ended from outside."""

from __future__ import annotations

from running_shop import Shop

from headrace.operate.cli.main import main


def test_a_running_app_is_drained_from_outside(tmp_path, capsys):
    shop = Shop(tmp_path / "home")
    try:
        shop.price(apple="1.00")
        with shop.running():
            shop.until_committed("prices", 1)
            assert main(["drain", "shop", "--stage", "nowhere", "--home", str(shop.home)]) == 1
            assert main(["drain", "shop", "--no-wait", "--home", str(shop.home)]) == 0
            assert main(["drain", "shop", "--home", str(shop.home)]) in (0, 1)  # 1: it has ended meanwhile
        said = capsys.readouterr().err
        assert "shop with all stages drains\n" in said
        assert main(["status", "shop", "--home", str(shop.home)]) == 0
        assert "drained" in capsys.readouterr().out
        assert main(["drain", "shop", "--home", str(shop.home)]) == 1
        assert "isn't running" in capsys.readouterr().err
    finally:
        shop.close()


def test_it_waits_until_the_app_has_ended(tmp_path, capsys):
    shop = Shop(tmp_path / "home")
    try:
        with shop.running():
            assert main(["drain", "shop", "--home", str(shop.home)]) == 0
            assert capsys.readouterr().err.endswith("shop has ended\n")
            assert not shop.is_running()
    finally:
        shop.close()


def test_a_wait_has_an_end(tmp_path, capsys):
    shop = Shop(tmp_path / "home")
    try:
        with shop.running():
            assert main(["drain", "shop", "--timeout", "0s", "--home", str(shop.home)]) == 1
            assert "shop is still draining" in capsys.readouterr().err
            assert main(["drain", "shop", "--timeout", "soon", "--home", str(shop.home)]) == 2
    finally:
        shop.close()
