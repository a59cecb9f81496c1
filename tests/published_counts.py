"""Exact parameter counts of every model, from published figures; what `cost/` and the built models
must both give.
"""

# 224 pixels, 1000 classes, class token, no tanh layer. ViTs and R+, R26+, R50+:
# vit_jax/models_test.py. R50_ViT_B32, R50_ViT_L16, ResNets: derived from the published code.
# BiT_R50x1: big_vision's bit_paper.py, run. The other BiT rows: the sum over the published array
# shapes. AxialViT_B*: ViT_B*, less the class token and its position (2 * 768), and a second half,
# of attention, MLP and two norms, in each of 12 blocks: 4 * (768 * 768 + 768) + (768 * 3072 + 3072)
# + (3072 * 768 + 768) + 4 * 768 = 7,087,872. AxialResNet50: ResNet50x1, where each 3x3 kernel on f
# channels, 9 f f, gives way to two attentions, each of 4 (f f + f) and tables of 2 L - 1 rows of f
# / 8 numbers, L the side of the map before the stride: 56 pixels for 3 units of 64 and 1 of 128, 28
# for 3 of 128 and 1 of 256, 14 for 5 of 256 and 1 of 512, 7 for 2 of 512. So 3 (8 * 64 - 64 ** 2) +
# 4 (8 * 128 - 128 ** 2) + 6 (8 * 256 - 256 ** 2) + 3 (8 * 512 - 512 ** 2) = -1,227,264, and 222 (3
# * 8 + 16) + 110 (3 * 16 + 32) + 54 (5 * 32 + 64) + 26 (2 * 64) = 33,104.
PARAMETERS = {
    "ViT_Ti16": 5_717_416,
    "ViT_S32": 22_878_952,
    "ViT_S16": 22_050_664,
    "ViT_B32": 88_224_232,
    "ViT_B16": 86_567_656,
    "ViT_B8": 86_576_872,
    "ViT_L32": 306_535_400,
    "ViT_L16": 304_326_632,
    "ViT_H14": 632_045_800,
    "R_ViT_Ti16": 6_337_704,
    "R26_ViT_S32": 36_431_912,
    "R26_ViT_B32": 101_383_976,
    "R50_ViT_B32": 110_945_832,
    "R50_ViT_B16": 98_659_112,
    "R50_ViT_L32": 328_994_856,
    "R50_ViT_L16": 316_483_624,
    "AxialViT_B32": 173_277_160,
    "AxialViT_B16": 171_620_584,
    "BiT_R50x1": 25_549_352,
    "BiT_R50x3": 217_319_080,
    "BiT_R101x1": 44_541_480,
    "BiT_R101x3": 387_934_888,
    "BiT_R152x2": 236_335_208,
    "BiT_R152x4": 936_533_224,
    "ResNet50x1": 25_557_032,
    "ResNet50x2": 98_004_072,
    "ResNet101x1": 44_549_160,
    "ResNet152x1": 60_192_808,
    "ResNet152x2": 236_350_568,
    "ResNet200x3": 568_656_040,
    "AxialResNet50": 24_362_872,
}
