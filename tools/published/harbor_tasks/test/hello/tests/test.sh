#!/bin/bash
if [ "$(cat hello.txt)" = hello ]; then echo 1; else echo 0; fi > "${XP_ROOT}/logs/verifier/reward.txt"
