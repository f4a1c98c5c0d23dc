"""A student that learns from its teacher alone."""

from __future__ import annotations

from tests.end_to_end.runs import Runner, draw, summary


def test_a_student_knows_what_its_teacher_knows(train: Runner) -> None:
    draw(train.cwd / "data", classes=("blue", "green", "red"), train=24, val=8)
    run = (
        "--data data --image-size 32 --precision fp32 --batch-size 8 --warmup-epochs 0"
    )
    here = "--loader torchvision --workers 0 --ceilings false --lr 0.02"
    large = "--arch shufflenet_v2_x0_5"
    train(run, here, large, "--epochs 7 --val-every 7 --output teacher").done()
    assert summary(train.cwd / "teacher")["validation"]["top1"] > 0.9
    small = "--arch tests.end_to_end.networks:tiny --lr 0.1"
    # with a share of 1 no label is looked at
    taught = "--teacher teacher/best.pt --teacher-share 1 --epochs 8 --val-every 8 --output student"
    train(run, here, small, taught).done()
    assert summary(train.cwd / "student")["validation"]["top1"] > 0.9
    draw(train.cwd / "other", classes=("blue", "green"), train=8, val=2)
    other = run.replace("data data", "data other")
    line = train(other, here, small, taught, "--output more").mistake()
    assert "trained on 3 classes, and not on the 2 of --data" in line
